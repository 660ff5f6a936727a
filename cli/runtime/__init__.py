"""``kopt runtime``: how long jobs run."""
