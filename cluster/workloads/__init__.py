"""GPU workloads of every kind: where their pods are described, and what these ask for."""
