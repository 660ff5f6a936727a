"""Shares of GPUs at admission: what is written on a workload, the claims that it needs, and a plan of both."""
