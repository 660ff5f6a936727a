"""Modes of AMD's GPUs: how compute (SPX, DPX, QPX, CPX) and memory (NPS1, NPS2, NPS4) are divided.

All GPUs of a node have one memory mode. Which pairs AMD has validated on which model, and since which driver, is data
(``amd_modes.toml``); others are refused with those that there are.
"""

import functools
import importlib.resources
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from kopt.core.gpu import GpuModel
from kopt.core.gpu_catalogue import UnknownGpuError, find_gpu
from kopt.core.units import WHOLE_GPU, Bytes, MilliGpu

COMPUTE_PARTITIONS: Mapping[str, int] = MappingProxyType({"SPX": 1, "DPX": 2, "QPX": 4, "CPX": 8})
"""Into how many partitions each mode divides a GPU of eight dies (XCDs)."""
DIES = 8
_MODE = re.compile(r"(SPX|DPX|QPX|CPX)[/_-](NPS[1248])", re.IGNORECASE)
_VERSION = re.compile(r"(\d{1,4})\.(\d{1,4})(?:\.(\d{1,6}))?(?:[-+~. ].{0,80})?")
Version = tuple[int, int, int]


class ModeError(ValueError):
    """A mode that a GPU, or its driver, does not have; the message says what would do."""


@dataclass(frozen=True, slots=True, order=True)
class AmdMode:
    """``compute`` and ``memory`` in capitals, as amd-smi prints them."""

    compute: str
    memory: str

    def __str__(self) -> str:
        return f"{self.compute}/{self.memory}"

    @property
    def name(self) -> str:
        """As the device plugin names the resource of one partition: ``cpx_nps4``."""
        return f"{self.compute}_{self.memory}".lower()

    @property
    def partitions(self) -> int:
        """Of one GPU."""
        return COMPUTE_PARTITIONS[self.compute]

    @property
    def dies(self) -> int:
        """XCDs of one partition."""
        return DIES // self.partitions

    @property
    def share(self) -> MilliGpu:
        """What one partition is of a GPU."""
        return MilliGpu(WHOLE_GPU // self.partitions)


WHOLE_MODE = AmdMode("SPX", "NPS1")
"""A GPU that is not divided."""


def amd_mode(text: str) -> AmdMode:
    """Of ``CPX/NPS4``, ``CPX-NPS4`` or ``cpx_nps4``. Raises ModeError."""
    match = _MODE.fullmatch(text.strip())
    if match is None:
        raise ModeError(f"{text[:40]!r} is no mode such as CPX/NPS4: {', '.join(COMPUTE_PARTITIONS)} with NPS1, 2 or 4")
    return AmdMode(match[1].upper(), match[2].upper())


@dataclass(frozen=True)
class ValidatedMode:
    """``rocm``: the first release with it; ``driver``: the first version of amdgpu that surely has it."""

    mode: AmdMode
    rocm: str
    driver: str
    source: str


@dataclass(frozen=True)
class ModelModes:
    """``accepted``: what its driver takes although AMD has not validated it."""

    model: GpuModel
    validated: tuple[ValidatedMode, ...]
    accepted: tuple[AmdMode, ...]

    def partition_bytes(self, mode: AmdMode) -> Bytes:
        """The memory of one partition. In NPS1 those of a GPU can reach all of it, and nothing keeps them apart."""
        return Bytes(self.model.usable_bytes // mode.partitions)

    def require(self, mode: AmdMode, driver: str) -> ValidatedMode:
        """Raises ModeError, with what would do; ``driver``: the version of amdgpu, empty where it is not known."""
        entry = next((each for each in self.validated if each.mode == mode), None)
        if entry is None:
            offered = ", ".join(f"{each.mode} (ROCm {each.rocm})" for each in self.validated)
            is_accepted = mode in self.accepted
            state = "its driver takes it, but AMD has not validated it" if is_accepted else "it has no such mode"
            raise ModeError(f"{mode} on a {self.model.name}: {state}; validated: {offered}")
        if mode == WHOLE_MODE:
            return entry
        version = driver_version(driver)
        if version is None:
            raise ModeError(
                f"{mode} on a {self.model.name} needs amdgpu {entry.driver} (ROCm {entry.rocm}), and its version "
                "is not known: the node labeller writes it as amd.com/gpu.driver-version (-driver-version)"
            )
        if version < _parsed(entry.driver):
            raise ModeError(
                f"{mode} on a {self.model.name} needs amdgpu {entry.driver} (ROCm {entry.rocm}), not {driver[:40]}"
            )
        return entry


def driver_version(text: str) -> Version | None:
    """Of ``6.12.12`` or ``30.10-2204008``; None for what is no version."""
    match = _VERSION.fullmatch(text.strip())
    return None if match is None else (int(match[1]), int(match[2]), int(match[3] or 0))


def modes_of(model: GpuModel) -> ModelModes:
    """Raises ModeError for a GPU without modes."""
    modes = _table().get(model.name)
    if modes is None:
        raise ModeError(f"a {model.name} has no partition modes; these have: {', '.join(_table())}")
    return modes


def mode_names() -> frozenset[str]:
    """Every mode that AMD has validated on some model, as resources are named."""
    return frozenset(each.mode.name for modes in _table().values() for each in modes.validated)


@functools.cache
def _table() -> Mapping[str, ModelModes]:
    text = importlib.resources.files("kopt.core.hardware").joinpath("amd_modes.toml").read_text()
    return MappingProxyType({name: _modes(name, row) for name, row in tomllib.loads(text).items()})


def _modes(name: str, row: Mapping[str, Any]) -> ModelModes:
    try:
        model = find_gpu(name)
    except UnknownGpuError as error:
        raise ValueError(f"amd_modes.toml: {error}") from None
    validated = tuple(
        ValidatedMode(amd_mode(each["mode"]), each["rocm"], each["driver"], each["source"]) for each in row["validated"]
    )
    return ModelModes(model, validated, tuple(amd_mode(mode) for mode in row["accepted"]))


def _parsed(text: str) -> Version:
    version = driver_version(text)
    assert version is not None, "versions of the table can be read"
    return version
