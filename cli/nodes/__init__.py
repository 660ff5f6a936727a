"""``kopt nodes``: plans for the GPUs of nodes, from the wish to the report."""
