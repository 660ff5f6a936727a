"""The runs controller: tells the prediction endpoint which GPU workloads started and ended, so that it can answer how
long their like will run.

In: Kueue Workloads, and batch Jobs that Kueue does not manage. Out: ``/v1/runtime/runs``; nothing is written to the
cluster. Sending a run again changes nothing, so a restart sends all that the cluster still has.
"""
