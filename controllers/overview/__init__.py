"""Explains what holds, moves, queues and evicts GPU workloads: `kopt why`, `kopt queue` and the cluster page.

In: untrusted objects (`documents`, `queues`), read once (`gather`). Out: types of core, rows, and findings in plain
sentences, the most important first (`why`). Nothing here writes to a cluster or decides.
"""
