"""GPU workloads that wait and run, and why those that wait do."""
