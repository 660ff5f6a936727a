"""How the bandwidth predictor is trained and scored."""
