"""The evictions controller (K5, K6): one durable record of each eviction of a GPU workload, whatever evicted it.

In: Kueue Workloads, Jobs, GPU pods, KAI's PodGroups and its events. Out: Eviction objects with their outcome. Nothing
is evicted or resumed here. A record is named by the time of its eviction, so that a restart, a second replica or a
replayed watch writes each once; the last checkpoint status of pods is kept in memory in every replica.
"""
