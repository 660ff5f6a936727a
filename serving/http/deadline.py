"""How long a caller still waits."""

import time
from dataclasses import dataclass

from kopt.core.reason import Reason


@dataclass(frozen=True)
class Deadline:
    """When the caller stops waiting, on the monotonic clock."""

    at_s: float
    budget_s: float

    def remaining_s(self) -> float:
        return self.at_s - time.monotonic()

    def within(self, milliseconds: float | None) -> "Deadline":
        """The same from the same moment on, but no later than after so long."""
        if milliseconds is None or milliseconds / 1000 >= self.budget_s:
            return self
        budget_s = milliseconds / 1000
        return Deadline(self.at_s - self.budget_s + budget_s, budget_s)

    @property
    def reason(self) -> Reason:
        text = f"The caller's deadline of {self.budget_s * 1000:g} ms passed before the model could answer."
        return Reason("DEADLINE", text, {"deadline_ms": self.budget_s * 1000})
