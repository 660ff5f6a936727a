"""Names and bounds of the wire, shared by the endpoint and its client (standard library only)."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from kopt.core.prediction import DEFAULT_HORIZONS_S as DEFAULT_HORIZONS_S
from kopt.core.prediction import DEFAULT_QUANTILES as DEFAULT_QUANTILES
from kopt.core.prediction import ModelVersion
from kopt.core.reason import Reason

SCHEMA: Final[Literal["kopt/v1"]] = "kopt/v1"
DEADLINE_HEADER = "x-kopt-deadline-ms"
"""Milliseconds the caller still waits from the moment it sends; past it the answer is the fallback."""

MAX_BODY_BYTES = 8 << 20
MAX_SERIES = 256
MAX_POINTS = 20_000
"""Per series: two weeks of minutes, two months of five minutes."""
MAX_HORIZONS = 16
MAX_QUANTILES = 16
MAX_TENANTS = 64
MAX_SCRIPT = 2 << 20
MAX_COMMAND = 1 << 18
"""Characters of a script, and of a command line or one of its words."""
MAX_ARGUMENTS = 20_000

GRID_S = 300
"""Finer histories are summed to this step; the same number as ``data.demand.table.GRID_S`` (a test holds them)."""


class AnswerError(ValueError):
    """The endpoint answered with something that is not a ``kopt/v1`` document."""


@dataclass(frozen=True)
class ModelOut:
    name: str
    version: str
    digest: str

    @classmethod
    def of(cls, version: ModelVersion) -> "ModelOut":
        return cls(version.name, version.version, version.digest)

    @property
    def model_version(self) -> ModelVersion:
        return ModelVersion(self.name, self.version, self.digest)


@dataclass(frozen=True)
class ReasonOut(Reason):
    numbers: Mapping[str, float | int | str]


def reasons_out(reasons: Iterable[Reason]) -> tuple[ReasonOut, ...]:
    return tuple(ReasonOut(reason.code, reason.message, reason.numbers) for reason in reasons)
