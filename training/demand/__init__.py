"""How the demand predictor is trained and scored."""
