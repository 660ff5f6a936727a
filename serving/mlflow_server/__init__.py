"""The door of the MLflow server that a home runs: who may ask it, and for what."""
