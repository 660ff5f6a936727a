"""``kopt queues``: a tree of KaiwoQueues, compiled for Kueue, KAI Scheduler or Volcano."""
