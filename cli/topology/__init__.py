"""``kopt topology``: what links GPUs."""
