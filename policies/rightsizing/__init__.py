"""CPU, memory and width of running workloads: what to change, and whether a change may stay.

In: what containers request, what they used, how a job scales, and step times before and after a change. Out: one
change, or a reason for none; ``KEEP``, ``UNDO`` or ``WATCH``. Nothing here reads a clock or a cluster.
"""
