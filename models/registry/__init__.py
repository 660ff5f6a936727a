"""Versions of models: saved as files that run no code, signed, registered in MLflow, promoted, loaded."""
