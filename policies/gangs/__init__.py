"""Gangs that hold GPUs without being able to start, which of them wait for each other, and which one to release.

In: a ``GangSnapshot``. Out: half-placed gangs, deadlocks (cycles of the wait-for graph) and ``Release`` decisions.
Gangs are never placed here: that is the scheduler's.
"""

from kopt.policies.gangs.half import half_placed
from kopt.policies.gangs.model import Gang, GangPod, GangSettings, GangSnapshot
from kopt.policies.gangs.release import Release, Surplus, releases
from kopt.policies.gangs.waits import deadlocks, placement, waits_for, with_freed

__all__ = [
    "Gang",
    "GangPod",
    "GangSettings",
    "GangSnapshot",
    "Release",
    "Surplus",
    "deadlocks",
    "half_placed",
    "placement",
    "releases",
    "waits_for",
    "with_freed",
]
