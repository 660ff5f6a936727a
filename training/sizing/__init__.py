"""How the sizing predictor is trained and scored."""
