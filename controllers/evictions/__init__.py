"""The eviction ledger (K5, K6): one durable line for each eviction of a GPU workload, by whomever.

In: Kueue Workloads, Jobs, GPU pods, KAI's PodGroups and its events. Out: Eviction objects, and what became of them.
Nothing is evicted or resumed here. What names an eviction is the eviction's own time, so that a restart, a second
replica or a watch that is replayed writes each once; what pods told of their checkpoints is kept in memory from before
they went, in every replica.
"""
