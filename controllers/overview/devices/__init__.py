"""GPUs and nodes of a cluster, as people look at them: who holds what, and how nodes score."""
