"""What code cannot show, learned: the driver's context, libraries' code and workspaces, other allocators.

To the allocator's figure comes a constant per kind of question, fitted so that ratios vary least: where a process is
measured one for each GPU, since the driver's context differs from one to the next. What is left is modelled by
gradient-boosted quantiles, whose centre corrects and whose width says how sure that is.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np

from kopt.core.gpu_catalogue import find_gpu, gpu_catalogue
from kopt.core.units import GIB, MIB
from kopt.core.workload.sizing import AllocationKind
from kopt.models.lightgbm.trees import Trees
from kopt.models.sizing.table import Array, Questions, SizingTable

LEVELS = (0.1, 0.5, 0.9)
_CONSTANTS = np.arange(0, 3072, 8) * float(MIB)
_UNIT = float(GIB)
_PROCESS_BASES = {"A100-SXM4-40GB": 1750.0 * MIB}
"""What a process that runs convolutions holds beside its allocator, of GPUs that no run of the default model tells
of: between the medians of two halves of the families of itu-rad/GPUMemNet's timm runs (f01eb05). Their libraries load
every kernel at once; later ones (CUDA 11.7 with PyTorch 1.13) load what is used, and hold less."""
_GPU_WORTH = 0.5
"""Families that a group's constant is worth beside that of one of its GPUs."""


@dataclass(frozen=True)
class ResidualSettings:
    """Of the boosters; small, because measured runs are few and kin."""

    rounds: int = 60
    learning_rate: float = 0.05
    leaves: int = 4
    rows_in_leaf: int = 20
    columns: float = 0.7
    """Share of the inputs that each tree sees."""
    seed: int = 0
    threads: int = 1

    def booster(self, level: float) -> dict[str, Any]:
        """LightGBM's parameters for one quantile; the same rows give the same trees."""
        return {
            "objective": "quantile",
            "alpha": level,
            "learning_rate": self.learning_rate,
            "num_leaves": self.leaves,
            "min_data_in_leaf": self.rows_in_leaf,
            "feature_fraction": self.columns,
            "seed": self.seed,
            "num_threads": self.threads,
            "deterministic": True,
            "force_row_wise": True,
            "verbose": -1,
            "use_missing": True,
            "min_data_in_bin": 1,
        }


@dataclass(frozen=True)
class Corrections:
    """Of n rows, in logarithms of bytes: the base, the correction to it, and half-widths below and above."""

    base: Array
    correction: Array
    below: Array
    above: Array


@dataclass
class Residual:
    """Fitted boosters, one per level, and the constant per group of questions (``group``) or one GPU of it
    (``group GPU``).

    ``additive``: what is learned is bytes on top, weighted so that relative errors count, since a driver's context and
    a library's workspace do not grow with the model; otherwise the logarithm of a factor, since a formula's errors do.
    """

    additive: bool
    boosters: tuple[Trees, ...]
    constants: dict[str, float] = field(default_factory=dict)

    @classmethod
    def fit(cls, table: SizingTable, settings: ResidualSettings, *, additive: bool) -> Self:
        """Raises ValueError on an empty table."""
        if not len(table):
            raise ValueError("no measured run to learn from")
        made = cls(additive, (), _constants(table, additive=additive))
        base, weights = made.base(table.questions), weigh(table)
        if additive:
            target, weights = (table.measured - base) / _UNIT, weights / (table.measured / _UNIT)
            weights = weights / weights.mean()
        else:
            target = np.log(table.measured / base)
        boosters = tuple(_fit(table.questions.inputs, target, weights, settings, level) for level in LEVELS)
        return cls(additive, boosters, made.constants)

    def base(self, questions: Questions) -> Array:
        """The allocator's amounts (n,) with their constants; groups never seen have the largest one of their metric,
        or none."""
        cells = zip(questions.groups.tolist(), questions.gpus.tolist(), strict=True)
        result: Array = questions.amounts + np.array([self._constant(group, gpu) for group, gpu in cells])
        return result

    def _constant(self, group: str, gpu: str) -> float:
        alike = [gpu, *(name for name in sorted(gpu_catalogue()) if _same_chip(name, gpu))]
        for name in alike:
            if _key(group, name) in self.constants:
                return self.constants[_key(group, name)]
        metric = group.rpartition("-")[2]
        if self.additive and metric == AllocationKind.PROCESS.value:
            for name in alike:
                if name in _PROCESS_BASES:
                    return _PROCESS_BASES[name]
        if group in self.constants:
            return self.constants[group]
        return max((value for key, value in self.constants.items() if key.endswith(f"-{metric}")), default=0.0)

    def predict(self, questions: Questions) -> "Corrections":
        """What is to be added to the logarithm of the base, and how wide the trees take the truth to spread."""
        base, amounts = self.base(questions), questions.amounts
        low, centre, high = (trees.predict(questions.inputs) for trees in self.boosters)
        if self.additive:
            low, centre, high = (
                np.log(np.maximum(base + array * _UNIT, amounts) / base) for array in (low, centre, high)
            )
        return Corrections(np.log(base), centre, np.maximum(centre - low, 0.0), np.maximum(high - centre, 0.0))

    def save(self, folder: Path, name: str) -> None:
        """Write files whose names begin with ``name``."""
        for level, trees in zip(LEVELS, self.boosters, strict=True):
            (folder / _trees(name, level)).write_text(trees.text, encoding="utf-8")

    @classmethod
    def load(cls, folder: Path, name: str, additive: bool, constants: Mapping[str, float]) -> Self:
        """Raises ValueError with the file's name."""
        boosters = tuple(Trees.load(folder / _trees(name, level)) for level in LEVELS)
        return cls(additive, boosters, dict(constants))


def weigh(table: SizingTable) -> Array:
    """Row weights with mean 1: families count by the root of their size, so that no large one drowns the others."""
    keys = np.char.add(np.char.add(table.sources, "\0"), table.families)
    _, cell_index, count = np.unique(keys, return_inverse=True, return_counts=True)
    weights = 1.0 / np.sqrt(count[cell_index])
    result: Array = weights / weights.mean()
    return result


def _constants(table: SizingTable, *, additive: bool) -> dict[str, float]:
    """Of every group, and of every GPU in it, drawn towards its group's where few families ran on it."""
    constants = {}
    for group in np.unique(table.questions.groups).tolist():
        own = table.where(table.questions.groups == group)
        constants[group] = whole = _closest(own, factor=not additive)
        for gpu in np.unique(own.questions.gpus).tolist() if additive else ():
            on_it = own.where(own.questions.gpus == gpu)
            share = (count := len(np.unique(on_it.families))) / (count + _GPU_WORTH)
            constants[_key(group, gpu)] = share * _closest(on_it, factor=False) + (1 - share) * whole
    return constants


def _same_chip(name: str, gpu: str) -> bool:
    """Whether two models of the catalogue differ in their board alone: the driver's context is the same then."""
    return name != gpu and name.partition("-")[0] == gpu.partition("-")[0] and _units(name) == _units(gpu)


def _units(name: str) -> int:
    return find_gpu(name).compute_units


def _key(group: str, gpu: str) -> str:
    return f"{group} {gpu}"


def _closest(table: SizingTable, *, factor: bool) -> float:
    """Bytes that, added to the allocator's, come closest to the measured figures; up to a common ``factor``, which the
    boosters bring, or exactly."""
    ratios = np.log(table.measured[:, None] / (table.questions.amounts[:, None] + _CONSTANTS))
    missed = np.abs(ratios - (np.median(ratios, axis=0) if factor else 0.0)).mean(0)
    return float(_CONSTANTS[int(np.argmin(missed))])


def _fit(inputs: Array, target: Array, weights: Array, settings: ResidualSettings, level: float) -> Trees:
    import lightgbm

    data = lightgbm.Dataset(inputs, target, weight=weights, params={"min_data_in_bin": 1, "verbose": -1})
    return Trees(lightgbm.train(settings.booster(level), data, num_boost_round=settings.rounds).model_to_string())


def _trees(name: str, level: float) -> str:
    return f"{name}_q{round(level * 100):02d}.txt"
