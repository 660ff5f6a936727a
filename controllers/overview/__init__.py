"""What holds, moves, queues and evicts GPU workloads, told to people: `kopt why`, `kopt queue` and the cluster page.

In: objects as anybody may have written them (`documents`, `queues`), read once (`gather`). Out: views of core, rows,
and findings in plain sentences, the most important first (`why`). Nothing here writes to a cluster or decides.
"""
