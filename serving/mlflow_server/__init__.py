"""Access control for the MLflow server of a home: which callers and which routes."""
