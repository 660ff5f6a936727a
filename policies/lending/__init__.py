"""What a pool lends now, how it is shared among borrowers, which gangs give GPUs back and when, and which return (K6).

In: the pool, the requests of its services' pods, fresh forecasts, the state of the last decision, running and waiting
workloads. Out: decisions with reasons, and the state for the next call. Forecasts only ever add to the requests of the
pods; without fresh forecasts nothing new is lent. A gang that is writing a checkpoint, or has no evidence of
checkpoints, is never selected as a victim.
"""

from kopt.policies.lending.lead_time import LeadTime, lead_time
from kopt.policies.lending.plan import Plan, ServiceSnapshot, plan, settings_for
from kopt.policies.lending.returns import HeldWorkload, Room, Turn, overdue, resumed, turn
from kopt.policies.lending.shares import Claim, shares
from kopt.policies.lending.victims import Candidate, Choice, VictimAction, choose

__all__ = [
    "Candidate",
    "Choice",
    "Claim",
    "HeldWorkload",
    "LeadTime",
    "Plan",
    "Room",
    "ServiceSnapshot",
    "Turn",
    "VictimAction",
    "choose",
    "lead_time",
    "overdue",
    "plan",
    "resumed",
    "settings_for",
    "shares",
    "turn",
]
