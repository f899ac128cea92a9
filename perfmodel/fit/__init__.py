"""Curves out of measurements: laws, the fitter, bands, rankings and plain-words verdicts.

laws/        what may be fitted: formula, parameters with bounds, self-starting guess, source, limits
data         columns of a CSV file or arrays, checked
space        parameters inside their bounds: natural and search scale, starting points
solver       least squares from several starts (the only user of scipy.optimize)
fitter       one law on one set of data -> FitResult; a law with given parameters -> Evaluation
result       what a fit is
diagnostics  residuals: runs, uneven scatter, outliers, lack of fit
bands        confidence and prediction bands (delta method, bootstrap)
crossval     errors on left-out rows and groups
ranking      rival laws, by AICc where the number of points allows it
verdict      findings in plain words
document     a fit as plain data, and its YAML file
"""
