"""``kopt fractions sharing``: how nodes share their GPUs, how they should, and one node's change to that.

In: the cluster and Prometheus, read with the user's own rights. Out: tables and manifests; `apply` and `undo` alone
write, to one node, the ConfigMap of the device plugin, and evictions.
"""
