"""How long jobs run: quantiles of the run time from what such jobs took before, and from the steps that a log shows."""
