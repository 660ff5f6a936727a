"""``kopt parallelism``: how to split a training job over GPUs, and over how many."""
