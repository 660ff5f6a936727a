"""The order of findings: what keeps a job from running, then what happened to it, then remarks."""

ENDED = 0
DELETED = 5
FAILING = 10
"""Containers that cannot start or crash: no queue and no controller will help."""
HELD = 20
DATA = 30
EVICTED = 40
NO_QUEUE = 50
PREEMPTION = 60
QUEUE = 70
CHECKS = 80
SCHEDULER = 90
STARTING = 100
RUNS = 110
REQUESTED = 120
"""What is asked of it while it runs: to save, to make room."""
BORROWS = 130
HISTORY = 140
DECIDED = 150
"""Sizes, placement and queue that we gave it."""
EVENTS = 160
UNREAD = 170
