"""What a pool lends now, how it is split among borrowers, who gives back and when, and who returns (K6).

In: the pool, what its services' pods ask for, forecasts where they are fresh, the state of the last decision, what
runs and what waits. Out: plain decisions with reasons, and the state for the next. Forecasts only ever add to what the
pods ask for; without fresh ones nothing new is lent. A gang in a checkpoint write, or without evidence of checkpoints,
is never told to go.
"""

from kopt.policies.reallocation.lead import LeadTime, lead_time
from kopt.policies.reallocation.plan import Plan, ServiceView, plan, settings_for
from kopt.policies.reallocation.returns import Room, Turn, Waiting, overdue, resumed, turn
from kopt.policies.reallocation.shares import Claim, shares
from kopt.policies.reallocation.victims import Candidate, Choice, Verdict, choose

__all__ = ["Candidate", "Choice", "Claim", "LeadTime", "Plan", "Room", "ServiceView", "Turn", "Verdict", "Waiting",
           "choose", "lead_time", "overdue", "plan", "resumed", "settings_for", "shares", "turn"]  # fmt: skip
