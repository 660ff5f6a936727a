"""How the run-time predictor is trained and compared."""
