"""``kopt utilisation``: how busy GPUs were, hour by hour for longer than a Prometheus keeps it.

In: the series that our rules record, pools of the cluster. Out: counts in a database, and percentiles of them.
"""
