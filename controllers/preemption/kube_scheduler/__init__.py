"""Preemption for plain pods and Jobs under kube-scheduler whose class has ``preemptionPolicy: Never``: kube-scheduler
preempts no pod for them, so that the victims are selected here alone.

In: pods and nodes. Out: the selected gang gets notices, its GPUs are promised to the preemptor (``nominatedNodeName``,
as kube-scheduler does), and all of its pods are evicted. The policy is the one for Kueue's Workloads.
"""
