"""Changes to the GPUs of one node as data: the state before, a list of steps, and who signed it."""
