"""What the extender remembers beside its fleet: gangs, replicas, GPUWorkloads, topologies and typical pods."""
