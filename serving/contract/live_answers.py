"""What the endpoint answers to pushed demand (standard library only)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from kopt.serving.contract.common import SCHEMA
from kopt.serving.contract.reading import read_answer


@dataclass(frozen=True)
class PushedDemand:
    """What the store knows of the service now."""

    service: str
    changed: int
    """Buckets that are new or were restated."""
    buckets: int
    """Known buckets of the last two weeks."""
    newest_s: float | None
    """End of the newest known bucket, Unix seconds."""
    schema: Literal["kopt/v1"] = SCHEMA


def parse_pushed(document: Mapping[str, Any]) -> PushedDemand:
    """Raises AnswerError for anything else."""
    return read_answer(PushedDemand, "/v1/demand/SERVICE", document)
