"""Queues that borrow, in each queueing system: what they may use, and who runs on what is lent."""
