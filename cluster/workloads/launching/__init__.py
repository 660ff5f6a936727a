"""What runs in the pods of a workload, where its operator puts that together from several places of the object."""
