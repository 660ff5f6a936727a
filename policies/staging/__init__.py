"""Staging: which copy is made, tried again or taken away next, on which nodes, and which workload waits for it.

In: what was asked for, what is known of each copy and of the Job that makes it, who uses it, what nodes have. Out: the
copies as they are to be told of, Jobs to begin and to end, workloads to hold and to let go. No input, output or clock.
"""
