"""Predictions set against measurements.

runtimes     which runtime profile a table's software name stands for
wiring       which system joins the devices of a row
operators    rows of single kernels and collectives, as arrays
steps        rows of steps and static generation, grouped by setup
memory       rows of stored and held bytes
predict      a whole table: a prediction with its band, or the reason why there is none
accuracy     errors by group, coverage of the bands, bounds that must hold
residuals    what the errors of a group depend on
host_fit     host times of a runtime from measured steps
"""
