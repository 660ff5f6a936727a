"""Who is charged for which part of a GPU, and what it costs: pure functions over intervals.

In: nodes and pods as they are at a time, prices, budgets. Out: segments whose shares sum to the GPUs of each node, and
lines of an invoice that sum to node-hours × price exactly. Nothing here knows a clock.
"""

from kopt.policies.cost.invoice import Line, Usage, invoice
from kopt.policies.cost.shares import Mix, recent_mix, shares
from kopt.policies.cost.timeline import Changes, Meter, Observation, advance, steady

__all__ = [
    "Changes",
    "Line",
    "Meter",
    "Mix",
    "Observation",
    "Usage",
    "advance",
    "invoice",
    "recent_mix",
    "shares",
    "steady",
]
