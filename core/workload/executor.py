"""What hands out shares of a GPU in a cluster: pods that ask for one in other terms than its own get none."""

from enum import StrEnum

IF_SHARED = "if the cluster hands out shares"
"""Behind a share where no executor is known."""


class Executor(StrEnum):
    """``UNKNOWN``: no cluster was looked at, or its signs contradict each other. ``NONE``: it has none."""

    UNKNOWN = "unknown"
    NONE = "none"
    KAI = "kai"
    HAMI = "hami"
    VOLCANO = "volcano"

    @property
    def hands_out(self) -> bool:
        """Whether a pod gets a share from it."""
        return self not in (Executor.UNKNOWN, Executor.NONE)
