"""What pods and workloads ask for: GPUs, devices, and what stands in other objects."""
