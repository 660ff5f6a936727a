"""What we hold of a workload, marked so that it can be given back."""
