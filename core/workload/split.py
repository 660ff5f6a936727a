"""Splits of a training job over GPUs: what is asked, and answers with memory, time, cost and settings."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from html import escape
from typing import Any

from kopt.core.notebook import scaling_row, stacked_bar, table
from kopt.core.reason import Reason
from kopt.core.units import format_bytes
from kopt.core.workload.training_plan import ModelShape, PlanError, Recompute, Sharding

MAX_GPUS = 1 << 17
MAX_SEQUENCE = 1 << 24
MAX_BATCH = 1 << 20


class Framework(StrEnum):
    """Trainers whose splits are known; the first two run the same code."""

    MEGATRON = "megatron"
    NEMO = "nemo"
    TORCHTITAN = "torchtitan"
    DEEPSPEED = "deepspeed"


class Matmul(StrEnum):
    """Number formats of layers' matrix products."""

    BF16 = "bf16"
    FP16 = "fp16"
    FP8 = "fp8"


@dataclass(frozen=True)
class TrainingJob:
    """What is to be trained, and on what. ``global_batch`` and ``sequence`` count sequences and tokens.

    ``network`` are the network cards of a node in words (``8x NDR400 IB``); empty: as such GPUs usually have. ``price``
    is money for a GPU and hour, in whatever currency.
    """

    model: ModelShape
    gpu: str
    gpus: int
    gpus_per_node: int
    sequence: int
    global_batch: int
    framework: Framework = Framework.MEGATRON
    matmul: Matmul = Matmul.BF16
    network: str = ""
    price: float | None = None

    def __post_init__(self) -> None:
        for name, most in (
            ("gpus", MAX_GPUS),
            ("gpus_per_node", 1024),
            ("sequence", MAX_SEQUENCE),
            ("global_batch", MAX_BATCH),
        ):
            if not 0 < getattr(self, name) <= most:
                raise PlanError(f"{name} must be from 1 to {most:,}, not {getattr(self, name)}")
        if self.gpus > self.gpus_per_node and self.gpus % self.gpus_per_node:
            raise PlanError(f"{self.gpus} GPUs are not whole nodes of {self.gpus_per_node}")
        if self.price is not None and not (math.isfinite(self.price) and self.price >= 0):
            raise PlanError(f"a price of {self.price} for a GPU and hour; give an amount of money")

    @property
    def nodes(self) -> int:
        return math.ceil(self.gpus / self.gpus_per_node)

    @property
    def tokens(self) -> int:
        """Tokens of a step."""
        return self.global_batch * self.sequence


@dataclass(frozen=True)
class Split:
    """How a job's work is divided; the product of the first four is the number of GPUs."""

    data: int
    tensor: int = 1
    pipeline: int = 1
    context: int = 1
    expert: int = 1
    virtual_stages: int = 1
    sharding: Sharding = Sharding.NONE
    recompute: Recompute = Recompute.NONE
    micro_batch: int = 1
    outer_stages_less: bool = False
    """The first and the last pipeline stage have one layer fewer than the others, for embedding and head."""

    @property
    def world(self) -> int:
        return self.data * self.tensor * self.pipeline * self.context

    def to_dict(self) -> dict[str, Any]:
        result = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return result | {"sharding": self.sharding.value, "recompute": self.recompute.value}


def in_words(split: Split) -> str:
    """Degrees above 1 and what else the split does: ``data 8 × tensor 4 × pipeline 2, ZeRO-1, micro-batch 1``."""
    degrees = [("data", split.data), ("tensor", split.tensor), ("pipeline", split.pipeline), ("context", split.context)]
    text = " × ".join(f"{name} {size}" for name, size in degrees if size > 1) or "one GPU"
    more = [f"expert {split.expert}"] if split.expert > 1 else []
    more += {"optimizer": ["ZeRO-1"], "gradients": ["ZeRO-2"], "parameters": ["ZeRO-3/FSDP"]}.get(split.sharding, [])
    more += [f"{split.virtual_stages} chunks"] if split.virtual_stages > 1 else []
    more += {"full": ["full recompute"], "products": ["selective recompute"]}.get(split.recompute, [])
    return ", ".join([text, *more, f"micro-batch {split.micro_batch}"])


@dataclass(frozen=True)
class Settings:
    """A split in a framework's own words: ``text`` is what to append or write; ``note`` what it cannot say of it."""

    framework: Framework
    text: str
    note: str = ""


@dataclass(frozen=True)
class SplitEstimate:
    """One split. Memory is one process' peak in bytes, its interval holds .95; ``step_low_seconds`` to
    ``step_high_seconds`` hold the step's time with ``probability``. ``parts`` are seconds of the step by what they go
    to; ``flops_share`` is model FLOPs utilisation."""

    split: Split
    fit_probability: float
    memory_bytes: float
    memory_low_bytes: float
    memory_high_bytes: float
    step_seconds: float
    step_low_seconds: float
    step_high_seconds: float
    probability: float
    flops_share: float
    tokens_per_second: float
    gpu_hours_per_billion_tokens: float
    money_per_billion_tokens: float | None
    parts: Mapping[str, float] = field(default_factory=dict)
    settings: tuple[Settings, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        result = {name: getattr(self, name) for name in self.__dataclass_fields__}
        result["split"] = self.split.to_dict()
        result["parts"] = dict(self.parts)
        result["settings"] = {
            each.framework.value: {"text": each.text} | ({"note": each.note} if each.note else {})
            for each in self.settings
        }
        return result


@dataclass(frozen=True)
class SplitAdvice:
    """The best splits first; none where nothing is likely enough to fit, which the first reason says."""

    job: TrainingJob
    splits: tuple[SplitEstimate, ...]
    considered: int
    reasons: tuple[Reason, ...]

    def to_dict(self) -> dict[str, Any]:
        """The document of ``kopt parallelism -o json``."""
        return {
            **job_to_dict(self.job),
            "considered": self.considered,
            "splits": [each.to_dict() for each in self.splits],
            "reasons": [reason.to_dict() for reason in self.reasons],
        }

    def _repr_html_(self) -> str:
        """For notebooks: the splits, what the time of a step goes to as a chart, and the settings of the first."""
        job, why = self.job, " ".join(reason.message for reason in self.reasons[:3])
        caption = f"{job.model.name} on {job.gpus} × {job.gpu}: the best of {self.considered:,} splits"
        if not self.splits:
            return table(caption, ("why",), [(why,)])
        longest = max(each.step_seconds for each in self.splits)
        rows = [
            (
                in_words(each.split),
                f"{each.fit_probability:.0%}",
                format_bytes(round(each.memory_bytes)),
                f"{each.step_seconds:.3g} s",
                f"{each.step_low_seconds:.3g} to {each.step_high_seconds:.3g}",
                f"{each.gpu_hours_per_billion_tokens:.3g}",
                stacked_bar(each.parts, longest),
            )
            for each in self.splits
        ]
        head = ("split", "fits", "memory", "step", "between", "GPU-hours per 10⁹ tokens", "where the time goes")
        settings = "".join(
            f"<details><summary>{escape(each.framework.value)}</summary><pre>{escape(each.text)}</pre></details>"
            for each in self.splits[0].settings
        )
        return table(caption, head, rows, why) + settings


@dataclass(frozen=True)
class CurvePoint:
    """The best split on so many GPUs. ``marginal_efficiency`` is what each GPU more than at the point before adds to
    the throughput, by what each GPU of the first point brings; 1 at the first."""

    gpus: int
    best: SplitEstimate
    speedup: float
    marginal_efficiency: float

    def to_dict(self) -> dict[str, Any]:
        return {
            "gpus": self.gpus,
            "best": self.best.to_dict(),
            "speedup": self.speedup,
            "marginal_efficiency": self.marginal_efficiency,
        }


@dataclass(frozen=True)
class ScalingCurve:
    """Points by rising number of GPUs. ``useful_gpus`` is the largest count up to which every point's marginal
    efficiency is at least ``threshold``; None where the job fits on none of the counts."""

    job: TrainingJob
    points: tuple[CurvePoint, ...]
    threshold: float
    useful_gpus: int | None
    reasons: tuple[Reason, ...]

    def to_dict(self) -> dict[str, Any]:
        return {
            **job_to_dict(self.job),
            "threshold": self.threshold,
            "useful_gpus": self.useful_gpus,
            "points": [point.to_dict() for point in self.points],
            "reasons": [reason.to_dict() for reason in self.reasons],
        }

    def _repr_html_(self) -> str:
        """For notebooks: the curve, with what is useful in bold."""
        useful = self.useful_gpus or 0
        rows = [
            scaling_row(
                point.gpus,
                (in_words(point.best.split), f"{point.best.step_seconds:.3g} s"),
                point.speedup,
                point.marginal_efficiency,
                useful=useful,
                threshold=self.threshold,
            )
            for point in self.points
        ]
        advised = f"up to {useful} GPUs are useful" if useful else "it fits on none of these"
        head = ("GPUs", "split", "step", "speed-up", "each further GPU brings", "")
        caption = f"{self.job.model.name} on {self.job.gpu}: {advised} at {self.threshold:.0%} or more each"
        return table(caption, head, rows, " ".join(reason.message for reason in self.reasons[:3]))


def job_to_dict(job: TrainingJob) -> dict[str, Any]:
    """A job as JSON, its model by name and number of weights."""
    return {
        "model": job.model.name,
        "parameters": job.model.parameters(),
        "gpu": job.gpu,
        "gpus": job.gpus,
        "gpus_per_node": job.gpus_per_node,
        "sequence": job.sequence,
        "global_batch": job.global_batch,
        "framework": job.framework.value,
        "matmul": job.matmul.value,
        "network": job.network,
    }
