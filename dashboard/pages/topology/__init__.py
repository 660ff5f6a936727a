"""A node's links as a picture, sets of its GPUs, and measured pairs of nodes."""
