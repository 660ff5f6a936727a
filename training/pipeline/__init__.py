"""The one training pipeline: search, folds, evaluation, gate and registration, for every predictor alike."""
