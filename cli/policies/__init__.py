"""``kopt policies``: what pods have to be like, as the API server enforces it."""
