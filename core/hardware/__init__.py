"""What links GPUs: node topologies, fabrics, collectives and measured bandwidth. Values only, standard library only."""
