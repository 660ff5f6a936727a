"""Files and logs of NCCL and RCCL: topology dumps, graphs, benchmark tables."""
