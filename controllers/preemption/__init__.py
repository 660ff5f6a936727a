"""Pre-emption (K5): whom a waiting workload of higher priority takes the place of, and when. Kueue does the taking.

In: Kueue's Workloads and queues, what the logs of running gangs say (annotations on their pods), evictions of the last
day. Out: for a short time other priorities on running Workloads, so that Kueue can take nobody but the chosen; events,
metrics, a decision on the waiting Workload. Nothing is evicted here.
"""
