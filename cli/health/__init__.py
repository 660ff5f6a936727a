"""``kopt health``: how healthy nodes and their GPUs are, and why."""
