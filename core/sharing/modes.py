"""Modes of sharing, executors and the duties of classes, as one table (modes.toml).

Reading a resource of this package is the only I/O: the file is part of the code, the same on every machine.
"""

import functools
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from importlib import resources
from typing import Any

from kopt.core.gpu import Vendor
from kopt.core.scheduling.workload_class import WorkloadClass


class SharingMode(StrEnum):
    """How processes share one GPU. ``TIME_SLICING``: in turns, by the driver; ``MPS``: at once, by NVIDIA's server."""

    EXCLUSIVE = "exclusive"
    MPS = "mps"
    TIME_SLICING = "time-slicing"


class SharingExecutor(StrEnum):
    """What sets a mode. ``NONE``: AMD's GPUs."""

    DEVICE_PLUGIN = "device-plugin"
    DRA = "dra"
    NONE = "none"


@dataclass(frozen=True)
class ModeTraits:
    """What a process is kept from doing to its neighbours, in a sentence each."""

    memory: str
    compute: str
    faults: str


@dataclass(frozen=True)
class MpsSupport:
    """From a compute capability on: the clients of a GPU, and whether threads and memory can be limited."""

    capability: tuple[int, int]
    clients: int
    limits: bool


@dataclass(frozen=True)
class ExecutorTraits:
    """``equal``: all clients of a GPU have equal parts of it."""

    means: str
    vendor: Vendor
    modes: tuple[SharingMode, ...]
    equal: bool
    most_replicas: int


@dataclass(frozen=True)
class ClassDuties:
    """Parts, above 0 and at most 1, of what a workload uses alone: what it is ``planned`` to have, and the ``floor``
    that it keeps under contention."""

    latency_critical: bool
    planned: float
    floor: float


@dataclass(frozen=True)
class SharingTable:
    """All of modes.toml; ``mps`` has the newest GPUs first."""

    modes: Mapping[SharingMode, ModeTraits]
    mps: tuple[MpsSupport, ...]
    executors: Mapping[SharingExecutor, ExecutorTraits]
    classes: Mapping[WorkloadClass, ClassDuties]

    def mps_of(self, capability: tuple[int, int] | None) -> MpsSupport | None:
        """Of GPUs of a compute capability; None for those without MPS, and where it is not known."""
        if capability is None:
            return None
        return next((each for each in self.mps if capability >= each.capability), None)


@functools.cache
def sharing_table() -> SharingTable:
    """The table as it is shipped."""
    document = tomllib.loads(resources.files("kopt.core.sharing").joinpath("modes.toml").read_text(encoding="utf-8"))
    return SharingTable(
        {SharingMode(name): ModeTraits(**row) for name, row in document["modes"].items()},
        tuple(MpsSupport(capability_of(row["capability"]), row["clients"], row["limits"]) for row in document["mps"]),
        {SharingExecutor(name): _executor(row) for name, row in document["executors"].items()},
        {WorkloadClass(name): ClassDuties(**row) for name, row in document["classes"].items()},
    )


def capability_of(written: str) -> tuple[int, int]:
    """``7.5`` as numbers. Raises ValueError."""
    major, _, minor = written.partition(".")
    return int(major), int(minor or 0)


def _executor(row: Mapping[str, Any]) -> ExecutorTraits:
    modes = tuple(SharingMode(name) for name in row["modes"])
    return ExecutorTraits(row["means"], Vendor(row["vendor"]), modes, row["equal"], row["most_replicas"])
