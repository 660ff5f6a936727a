"""What speaks against a GPU and its node: codes as data (``health_codes.toml``), evidence, and verdicts.

Reading resources of this package is its only I/O: they are part of the code, the same on every machine.
"""

import functools
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from importlib import resources
from types import MappingProxyType
from typing import Any

NODE = ""
"""In place of a GPU: evidence against the node as a whole."""
_SPANS_S = {"s": 1.0, "m": 60.0, "h": 3600.0}


class EvidenceClass(StrEnum):
    """Who is at fault. ``APPLICATION`` explains and never counts."""

    APPLICATION = "application"
    HARDWARE = "hardware"
    ENVIRONMENT = "environment"
    JOB = "job"
    OTHERS = "others"


class CodeKind(StrEnum):
    """How evidence of a code adds up: each event, while a state lasts, or in proportion to its duration."""

    EVENT = "event"
    STATE = "state"
    DURATION = "duration"


class Grade(IntEnum):
    """In order of severity. ``SUSPECT``: others are preferred. ``CONDEMNED``: nothing new should start there."""

    HEALTHY = 0
    SUSPECT = 1
    CONDEMNED = 2

    @property
    def text(self) -> str:
        """As objects carry it."""
        return self.name.capitalize()

    @classmethod
    def of(cls, text: str) -> "Grade":
        """Raises ValueError for another word."""
        for grade in cls:
            if grade.text == text:
                return grade
        raise ValueError(f"{text!r} is no verdict; there are {', '.join(grade.text for grade in cls)}")


@dataclass(frozen=True)
class HealthCode:
    """``weight``: what one event adds; a load of 1 condemns. ``most``: the largest load of this code alone. ``full_s``:
    of a duration, after how long it has its whole weight. ``sticky``: only a repair ends it."""

    name: str
    means: str
    of: EvidenceClass = EvidenceClass.HARDWARE
    kind: CodeKind = CodeKind.EVENT
    weight: float = 0.0
    half_life_s: float = 3600.0
    most: float = 4.0
    full_s: float = 0.0
    sticky: bool = False

    @property
    def label(self) -> str:
        """As people write it: XID 79."""
        return self.name.replace("XID_", "XID ") if self.name.startswith("XID_") else self.name


@dataclass(frozen=True)
class Evidence:
    """One observation. ``gpu`` is its index on the node as text, `NODE` for the node. ``amount``: events, 1 or 0 of a
    state (it lasts, it is over), seconds of a duration. ``at_s``: Unix time."""

    code: str
    gpu: str
    amount: float
    at_s: float
    detail: str = ""


@dataclass(frozen=True)
class Entry:
    """All evidence of one code against one GPU: what it weighs at ``at_s``, and since when and how often it was seen.

    ``lasts``: a state that has not ended, or a sticky code that was not repaired.
    """

    code: str
    gpu: str
    load: float
    at_s: float
    first_s: float
    last_s: float
    count: float = 1.0
    detail: str = ""
    lasts: bool = False


@dataclass(frozen=True)
class NodeHealth:
    """``score`` is 1 for a node of which nothing is known, 0 for a condemned one: 1 less the largest load of its
    parts. ``loads`` and ``gpus`` by GPU; `NODE` is what concerns the node itself."""

    grade: Grade = Grade.HEALTHY
    score: float = 1.0
    gpus: Mapping[str, Grade] = field(default_factory=dict)
    loads: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Outcome:
    """One pod of a job that ended on a node. ``failed``: by itself, not evicted or ended by a person. ``family``: of
    jobs that one person or pipeline repeats; failures of one family alone condemn nothing."""

    node: str
    job: str
    failed: bool
    at_s: float
    family: str = ""


@dataclass(frozen=True)
class MetricRule:
    """How a series is read; see ``health_metrics.toml``."""

    name: str
    read: str
    code: str = ""
    least: float = 1.0
    masks: Mapping[str, int] = field(default_factory=dict)


@functools.cache
def health_codes() -> Mapping[str, HealthCode]:
    """Every code by its name."""
    return MappingProxyType({name: _code(name, row) for name, row in _table("health_codes.toml").items()})


def code_of(name: str) -> HealthCode:
    """An XID that the table does not know counts for nothing: most are informational."""
    code = health_codes().get(name)
    return code or HealthCode(name, "a code that the table of codes does not weigh", EvidenceClass.APPLICATION)


@functools.cache
def metric_rules() -> Mapping[str, MetricRule]:
    """Every series by its name."""
    return MappingProxyType(
        {name: MetricRule(name, **row) for name, row in _table("health_metrics.toml").items()},
    )


def _table(name: str) -> Mapping[str, Any]:
    return tomllib.loads(resources.files("kopt.core.hardware").joinpath(name).read_text(encoding="utf-8"))


def _code(name: str, row: Mapping[str, Any]) -> HealthCode:
    return HealthCode(
        name,
        row["means"],
        EvidenceClass(row.get("class", "hardware")),
        CodeKind(row.get("kind", "event")),
        float(row.get("weight", 0.0)),
        _seconds(row.get("half_life", "1h")),
        float(row.get("most", 4.0)),
        _seconds(row.get("full", "0s")),
        bool(row.get("sticky", False)),
    )


def _seconds(span: str) -> float:
    return float(span[:-1]) * _SPANS_S[span[-1]]
