"""``kopt bandwidth``: what sets of GPUs and pairs of nodes reach."""
