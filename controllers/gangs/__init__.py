"""Half-placed gangs: ``kopt controller gangs`` finds those that wait for each other, and releases one of them.

In: pods, nodes, Jobs, Kueue's Workloads and namespaces. Out: events, annotations on the gangs' owners, and in mode
enforce a hold (``cluster.holds``) on the one that loses least, given back once another has started.
"""
