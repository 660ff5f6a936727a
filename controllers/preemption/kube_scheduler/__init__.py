"""Plain pods and Jobs under kube-scheduler whose class has ``preemptionPolicy: Never``: it takes nobody for them, so
that whose place they take is ours alone to say.

In: pods and nodes. Out: the chosen gang is told, the GPUs are promised to those that wait (``nominatedNodeName``, as
kube-scheduler itself does), and all of the gang's pods are evicted. The policy is the one for Kueue's Workloads.
"""
