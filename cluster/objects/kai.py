"""How KAI Scheduler marks what it schedules."""

QUEUE_LABEL = "kai.scheduler/queue"
