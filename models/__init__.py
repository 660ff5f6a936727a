"""The predictors: fit, predict, explain, save and load, in formats that cannot run code.

In: feature rows. Out: ``core.prediction.Prediction`` values, each with an interval and reasons.
"""
