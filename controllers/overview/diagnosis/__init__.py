"""Why a workload of any scheduler waits, from the objects of a cluster.

In: what was read of a job (``overview.job``) and of the cluster (``documents``). Out: ``core.scheduling.diagnosis``.
The objects become a ``policies.diagnosis.Situation``; what binds, what would help and when it starts is decided there.
"""
