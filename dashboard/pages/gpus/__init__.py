"""The map of GPUs: node by node, who holds each and how busy it is."""
