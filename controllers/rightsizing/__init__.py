"""Rightsizing (K18): CPU and memory of running GPU workloads, changed in place, watched, and kept or taken back.

In: pods with their progress and checkpoint state, what containers used (Prometheus), Kaiwo's GpuWorkloads. Out: resized
pods with a record of each change, events, metrics. `kopt rightsize` does the same for one workload at a person's word.
"""
