"""Where the pages read how busy GPUs were over months."""

from typing import Protocol

from kopt.policies.efficiency.busy_counts import PoolUse


class UtilisationError(Exception):
    """It cannot be read now; the message is a sentence for the reader."""


class UtilisationSource(Protocol):
    """Counts that outlive Prometheus' series, such as the meter's."""

    def days(self, since_s: float) -> list[PoolUse]:
        """By day and pool, from the Unix time ``since_s`` on; empty where nothing was stored. Blocks; raises
        UtilisationError."""
