"""Features become fitted models: folds and trials on Ray, evaluation by slice, gate, registration.

In: feature tables. Out: signed model versions and their evidence in MLflow.
"""
