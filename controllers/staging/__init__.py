"""The staging controller (K4): data is there before a workload holds a GPU.

In: StagedData, workloads that name them, nodes, the Jobs that download and what their pods tell. Out: those Jobs, the
status of StagedData, workloads held before their queue and let go when their data is complete, events and metrics. What
is decided is `policies.staging`'s; the data is moved by `kopt stage` in pods, never by this process.
"""
