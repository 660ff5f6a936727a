"""The meter: records which pod held which part of which GPU from when until when, and keeps budgets.

In: pods, nodes, namespaces, Kueue's Workloads and LocalQueues, KaiwoBudgets. Out: intervals in a database (SQLite or
PostgreSQL), which ``kopt cost`` reads; the status of budgets; in mode enforce ``stopPolicy: Hold`` on the LocalQueues
of a budget that is spent.
"""
