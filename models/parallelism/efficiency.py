"""Step time = (micro-batches + bubbles) × (compute and what communication it does not hide) + gradients + update.

Compute is a roofline with measured efficiencies: FLOPs by a share of the peak and bytes by a share of the memory's
bandwidth, but no less than the host needs to launch it, which decides for small layers. Each parameter is a physical
quantity with a prior of what is known without any measurement here; ``fitting`` moves it as far as step times ask.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from kopt.models.parallelism.step_time import OWN_FRAMEWORKS, StepRow, chip_of

Numbers = NDArray[np.float64]
_HOST_SHARPNESS = 4.0
"""How sharply the longer of GPU and host decides: their times are added as a norm of this order."""
_PRODUCTS = {"half": 0.65, "eight": 0.6, "blocks": 0.55, "four": 0.5}
"""Shares of the peak by format: 16 bits, eight, eight with a scale for each block (mxfp8), four."""
_CDNA_PRODUCTS = {"half": 0.45, "eight": 0.42}
"""An MI300X reaches 1,159 of 2,615 TFLOPS in products of 8192 in eight bits, and 329 of 1,307 in fused attention
(samuel-bohman/AI-benchmarking-guide, Azure_Results/ND_MI300X_v5_results.md)."""
PRODUCTS_DEVIATION = 0.25
"""Of the logarithm of what a generation reaches, where it was not measured."""

_FORMATS = {
    "volta": ("half",),
    "ampere": ("half",),
    "hopper": ("half", "eight"),
    "ada": ("half", "eight"),
    "blackwell": ("half", "eight", "blocks", "four"),
    "ultra": ("half", "eight", "blocks", "four"),
    "cdna": ("half", "eight"),
}
_GENERATIONS = tuple(_FORMATS)
_OLDER = ("volta", "ampere")
_ACTIVATIONS = {"triton": "eager"}
"""Styles whose operations between products run as another's do."""

PRIORS: Mapping[str, tuple[float, float]] = MappingProxyType(
    {
        **{
            f"products_{name}_{each}": (_CDNA_PRODUCTS[each] if name == "cdna" else _PRODUCTS[each], PRODUCTS_DEVIATION)
            for name, formats in _FORMATS.items()
            for each in formats
        },
        "experts": (0.8, 0.3),
        "attention_fused": (0.5, 0.3),
        "attention_flash": (0.4, 0.3),
        "attention_older": (0.5, 0.3),
        "attention_triton": (0.35, 0.3),
        "attention_cdna": (0.25, 0.3),
        "memory": (0.75, 0.15),
        "scores": (1.0, 0.5),
        "activations_fused": (1.0, 0.4),
        "activations_eager": (1.6, 0.4),
        "activations_compiled": (1.2, 0.4),
        "tails": (0.5, 0.4),
        "framework_usual": (1.0, 0.01),
        **{f"framework_{name}": (1.0, 0.3) for name in OWN_FRAMEWORKS},
        "misaligned": (1.3, 0.2),
        **{f"host_layer_{name}": (1.5e-3, 0.6) for name in _GENERATIONS},
        "host_expert_layer": (1.5e-3, 0.7),
        "host_local_expert": (3e-5, 0.8),
        "host_split_layer": (5e-4, 0.7),
        "host_micro_batch": (3e-3, 0.8),
        **{f"step_{name}": (3e-2, 1.0) for name in _GENERATIONS},
        "step_stage": (5e-3, 1.0),
        "exposed_tensor": (0.8, 0.3),
        "exposed_context": (0.5, 0.4),
        "exposed_expert": (0.8, 0.4),
        "exposed_pipeline": (0.7, 0.5),
        "exposed_data": (0.6, 0.4),
        "overlap_sharded": (2.0, 0.4),
    }
)
"""Value and standard deviation of its logarithm. ``products`` and ``attention`` are shares of the peak, ``memory`` of
the bandwidth; ``host`` and ``step`` are seconds; ``exposed`` is the share that computing does not hide;
``framework`` is what a framework's computing takes by that of the others;
``overlap_sharded`` is the order of the norm that adds compute and the gathering of sharded weights: 1 where nothing
overlaps, larger the more does."""


@dataclass(frozen=True)
class Efficiency:
    """Parameters by the names of ``PRIORS``, and how far answers may be off.

    ``spread`` is half the 80 % interval of a step time's logarithm, ``host_spread`` that of steps that the host limits:
    quantiles of the errors on families of models that were left out (``fitting``). ``own_spread`` is what is left of it
    where the job itself has run on other numbers of GPUs or with other splits: errors around their family's median.
    """

    parameters: Mapping[str, float]
    spread: float
    host_spread: float
    own_spread: float
    measured_gpus: frozenset[str] = frozenset()
    """Chips whose steps were fitted on; what others reach is a prior."""

    def knows(self, gpu: str) -> bool:
        """Whether steps on GPUs of this model were measured."""
        return chip_of(gpu) in self.measured_gpus

    def seconds(self, rows: Sequence[StepRow]) -> Numbers:
        """Step times in seconds, one for each row."""
        return sum_of_parts(self.parts(rows))

    def parts(self, rows: Sequence[StepRow]) -> dict[str, Numbers]:
        """Seconds of a step by what they go to."""
        return parts_of(self.parameters, Table.of(rows))

    def spreads(self, rows: Sequence[StepRow]) -> Numbers:
        """Half the 80 % interval of each step time's logarithm."""
        return np.array([self.host_spread if row.small else self.spread for row in rows])


@cache
def shipped_efficiency() -> Efficiency:
    """The parameters that come with the package (``efficiency.json``), fitted on published step times."""
    text = resources.files("kopt.models.parallelism").joinpath("efficiency.json").read_text(encoding="utf-8")
    document = json.loads(text)
    parameters = {name: float(document["parameters"][name]) for name in PRIORS}
    spread, host, own = (float(document[name]) for name in ("spread", "host_spread", "own_spread"))
    return Efficiency(MappingProxyType(parameters), spread, host, own, frozenset(map(str, document["measured_gpus"])))


@dataclass(frozen=True)
class Table:
    """Rows as columns."""

    columns: Mapping[str, Numbers]
    products: "Labels"
    half_products: "Labels"
    attentions: "Labels"
    generations: "Labels"
    activations: "Labels"
    frameworks: "Labels"

    @classmethod
    def of(cls, rows: Sequence[StepRow]) -> "Table":
        names = rows[0].numbers if rows else ()
        return cls(
            {name: np.array([row.numbers[name] for row in rows]) for name in names},
            Labels.of(row.format for row in rows),
            Labels.of(f"{row.generation}_half" for row in rows),
            Labels.of(_attention(row.generation, row.style) for row in rows),
            Labels.of(row.generation for row in rows),
            Labels.of(_ACTIVATIONS.get(row.style, row.style) for row in rows),
            Labels.of(row.framework for row in rows),
        )


@dataclass(frozen=True)
class Labels:
    """A column of texts: which there are, and the index of each row's."""

    names: tuple[str, ...]
    indices: NDArray[np.intp]

    @classmethod
    def of(cls, texts: Iterable[str]) -> "Labels":
        index: dict[str, int] = {}
        indices = [index.setdefault(text, len(index)) for text in texts]
        return cls(tuple(index), np.array(indices, dtype=np.intp))


def sum_of_parts(parts: Mapping[str, Numbers]) -> Numbers:
    total: Numbers = np.sum(np.stack(list(parts.values())), axis=0)
    return total


def _each(parameters: Mapping[str, float], beginning: str, labels: Labels) -> Numbers:
    values: Numbers = np.array([parameters[f"{beginning}_{name}"] for name in labels.names])[labels.indices]
    return values


def parts_of(parameters: Mapping[str, float], table: Table) -> dict[str, Numbers]:
    """Seconds of a step by what they go to, for every row of a table."""
    of = table.columns
    products = _each(parameters, "products", table.products)
    half = _each(parameters, "products", table.half_products)
    attention = _each(parameters, "attention", table.attentions)
    moved = of["operands"] + of["activations"] * _each(parameters, "activations", table.activations)
    moved = (moved + of["scores"] * parameters["scores"]) / parameters["memory"]
    aligned = np.where(of["misaligned"] > 0, parameters["misaligned"], 1.0)
    gpu = (
        (of["linear"] + of["tails"] * parameters["tails"]) / products
        + of["expert_products"] / (products * parameters["experts"])
        + of["head"] / half
        + of["attention"] / attention
    ) * aligned + moved
    host = (
        of["layers"] * _each(parameters, "host_layer", table.generations)
        + of["expert_layers"] * parameters["host_expert_layer"]
        + of["local_experts"] * parameters["host_local_expert"]
        + of["split_layers"] * parameters["host_split_layer"]
        + parameters["host_micro_batch"]
    )
    compute = _norm(gpu, host, _HOST_SHARPNESS) * _each(parameters, "framework", table.frameworks)
    exchanged = {name: parameters[f"exposed_{name}"] * of[name] for name in ("tensor", "context", "expert", "pipeline")}
    busy = compute + sum(exchanged.values())
    sharded = _norm(busy, of["sharded"], parameters["overlap_sharded"]) - busy
    count = of["micro_batches"]
    return {
        "compute": count * compute,
        **{name: count * each for name, each in exchanged.items()},
        "sharded": count * sharded,
        "bubble": of["bubbles"] * (busy + sharded),
        "data": parameters["exposed_data"] * of["data"],
        "update": of["update"] / parameters["memory"],
        "fixed": _each(parameters, "step", table.generations) + of["stages"] * parameters["step_stage"],
    }


def _attention(generation: str, style: str) -> str:
    """The kernel: AMD's, the Triton kernel of old, the one that older GPUs run everywhere, or on later GPUs cuDNN's in
    fused models, else FlashAttention 2, which was made for the GPUs before them."""
    if generation == "cdna":
        return generation
    if style == "triton":
        return style
    if generation in _OLDER:
        return "older"
    return "fused" if style == "fused" else "flash"


def _norm(first: Numbers, second: Numbers, order: float) -> Numbers:
    largest = np.maximum(np.maximum(first, second), 1e-30)
    result: Numbers = largest * ((first / largest) ** order + (second / largest) ** order) ** (1 / order)
    return result
