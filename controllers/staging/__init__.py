"""The staging controller (K4): data is there before a workload holds a GPU.

In: StagedData, workloads that name them, nodes, download Jobs and what their pods report. Out: those Jobs, the status
of StagedData, workloads held before their queue and released when their data is complete, events and metrics.
`policies.staging` decides; the data is moved by `kopt stage` in pods, never by this process.
"""
