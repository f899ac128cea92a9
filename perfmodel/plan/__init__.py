"""What to buy and how to run it: search, fronts, sensitivity, capacity over time."""
