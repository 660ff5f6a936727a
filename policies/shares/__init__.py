"""The ideal share of every queue at one instant, and how far what queues use is from it.

In: ``ShareQueue`` trees with weights, quotas, limits, guarantees and demands, and the capacity. Out: ``ideal_shares``,
by weighted hierarchical dominant resource fairness, and ``share_rows``, which hold use against it. No engine's own
arithmetic is copied: this is what engines are measured by.
"""

from kopt.policies.shares.filling import ideal_shares
from kopt.policies.shares.measure import QueueUse, ShareRow, misallocated, share_rows
from kopt.policies.shares.model import Amounts, ShareQueue, ShareTree

__all__ = [
    "Amounts",
    "QueueUse",
    "ShareQueue",
    "ShareRow",
    "ShareTree",
    "ideal_shares",
    "misallocated",
    "share_rows",
]
