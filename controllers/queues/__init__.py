"""``kopt controller queues``: KaiwoQueues carried out by the cluster's engine; what it cannot do is in their status.

In: KaiwoQueues and KaiwoPools. Out: their status; in the mode enforce the engine's queues, by server-side apply. What
becomes of them is decided in ``policies/queues``.
"""
