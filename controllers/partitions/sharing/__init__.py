"""How NVIDIA's device plugin shares the GPUs of nodes, changed as pods there disturb each other.

In: nodes with the plugin's configuration label, its ConfigMap, pods on those nodes, and what Prometheus measured of
their GPUs. Out: events that say what would help and, in mode enforce, the label of one node at a time, through cordon,
drain, proof and way back. State is on nodes, in the marks of ``cluster.holds.node_sharing``.
"""
