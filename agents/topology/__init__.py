"""The topology agent: reports to the cluster what links a node's GPUs to one another and to its network cards.

In: the vendors' tools, sysfs, NVML, or a folder of recorded outputs; each by itself, with limits, so that one that
hangs or fails costs only what it alone knows. Out: one ``NodeTopology`` object and labels of the node, written when
they change.

What is read is parsed and merged by ``formats.topology``; whether links are worse than they were is judged here.
"""
