"""What predictors answered beside what was measured later: kept, evaluated, and used to widen intervals that fail."""
