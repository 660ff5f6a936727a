"""``kopt fractions sharing``: how nodes share their GPUs, how they should, and the manifests for it.

In: the cluster and Prometheus, read with the user's own rights. Out: tables and manifests; nothing is written.
"""
