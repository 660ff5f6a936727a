"""Asking a training to save now: what is written on its pods, and what stands on them afterwards."""

import json
import math
from dataclasses import dataclass
from typing import Any

from kopt.core.times import stamp
from kopt.core.untrusted import UnreadableError, salvage, unix_time
from kopt.core.workload.checkpoint import JobState

ASKABLE_ANNOTATION = "kaiwo.ai/saves-on-request"
"""``true`` on pods whose program looks for requests; it stands in their template."""
REQUEST_ANNOTATION = "kaiwo.ai/save-requested"
"""JSON of a ``SaveRequest``, on every pod of a job that is asked."""


@dataclass(frozen=True)
class SaveRequest:
    """``by`` asks for a checkpoint, begun at ``at_s`` or later; after ``until_s`` nobody waits for it (Unix seconds).

    Both are whole seconds: stamps of checkpoints are, too. ``for_whom`` is the ``namespace/name`` that is to get the
    GPUs, where there is one.
    """

    at_s: float
    until_s: float
    by: str = ""
    reason: str = ""
    for_whom: str = ""

    @classmethod
    def of(cls, by: str, reason: str, now_s: float, until_s: float, for_whom: str = "") -> "SaveRequest":
        """A request that is written at ``now_s``, from the next whole second on: a checkpoint of an earlier moment of
        the same second is never taken for the answer."""
        at_s = math.ceil(now_s)
        return cls(float(at_s), float(max(at_s, math.ceil(until_s))), by, reason, for_whom)

    @classmethod
    def from_text(cls, text: object) -> "SaveRequest | None":
        """None for what is no request that can be read."""
        try:
            # The program saves whatever words stand beside the times.
            result = salvage(text)
            at_s, until_s = (unix_time(result.get(name)) for name in ("at", "until"))
        except UnreadableError:
            return None
        return cls(at_s, until_s, *(_word(result, name) for name in ("by", "reason", "for")))

    def to_document(self) -> dict[str, str]:
        """What the annotation holds as JSON."""
        result = {"at": stamp(self.at_s), "until": stamp(self.until_s), "by": self.by, "reason": self.reason}
        return result | ({"for": self.for_whom} if self.for_whom else {})

    def to_text(self) -> str:
        """The value of the annotation."""
        return json.dumps(self.to_document(), ensure_ascii=False)


@dataclass(frozen=True)
class PodSaving:
    """What one pod says: whether its program can be asked, what it was asked, and how its checkpoints stand."""

    askable: bool = False
    requested_at_s: float | None = None
    until_s: float | None = None
    last_durable_at_s: float | None = None
    state: JobState = JobState.UNKNOWN


def _word(result: dict[str, Any], name: str) -> str:
    value = result.get(name)
    return value if isinstance(value, str) else ""
