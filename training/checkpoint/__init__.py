"""How the checkpoint predictor is trained and scored."""
