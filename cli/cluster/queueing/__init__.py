"""Commands about what waits: queues, priority, replicas and reservations."""
