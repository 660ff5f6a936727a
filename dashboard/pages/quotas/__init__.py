"""The tree of queues with quota, use and waiting over time, and reservations on an axis."""
