"""Preemption (K5): which workloads make room for a pending one of higher priority, and when. Kueue evicts them.

In: Kueue's Workloads and queues, the checkpoint status of running gangs (annotations on their pods), evictions of the
last day. Out: raised priorities on running Workloads for a short time, so that Kueue can preempt the selected victims
only; events, metrics, a decision on the pending Workload. Of Kueue's Workloads none is evicted here.
"""
