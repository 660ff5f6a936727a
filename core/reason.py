"""Why: a code for programs, a sentence for people, the numbers behind it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Reason:
    """One reason of a prediction or a decision.

    ``code`` is stable upper snake case (``LAST_VALUE``), explained in ``core.reason_codes``; ``message`` is one
    sentence with numbers and, for a refusal, what to do; ``numbers`` carries the same figures for programs.
    """

    code: str
    message: str
    numbers: Mapping[str, float | int | str] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        return {"code": self.code, "message": self.message, "numbers": dict(self.numbers)}
