"""Step times that others published, as plans on clusters: ``benchmarks/published_step_times.csv``."""

import csv
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from kopt.core.workload.language_models import find_language_model
from kopt.core.workload.training_plan import (
    Attention,
    Experts,
    LatentAttention,
    ModelShape,
    Parallelism,
    Precision,
    Recompute,
    Sharding,
    Style,
    TrainingPlan,
)
from kopt.models.parallelism.communication import ClusterDescription

_APART_EVERY = 4
_SIZES = ("layers", "hidden", "heads", "kv_heads", "head_dim", "ffn", "vocab")
_LINKS = {"V100": "NV2"}
"""Of nodes of four."""
_EXPORTED = {"A800-SXM4-80GB": ("A100-SXM4-80GB", "NV8"), "H800-SXM5-80GB": ("H100-SXM5-80GB", "NV8")}
"""The same chip with fewer of its links."""


@dataclass(frozen=True)
class MeasuredStep:
    """``family`` is source and model, which are held out together; ``matmul`` the format of layers' products."""

    family: str
    plan: TrainingPlan
    cluster: ClusterDescription
    matmul: str
    seconds: float
    condition: str
    source: str

    @property
    def organisation(self) -> str:
        """Who measured."""
        return self.family.partition("/")[0]

    @property
    def stable(self) -> bool:
        return "unstable" not in self.condition

    @property
    def apart(self) -> bool:
        """Of a family that was never looked at while the model was made."""
        return hashlib.sha256(self.family.encode()).digest()[0] % _APART_EVERY == 0


def read_measured_steps(path: Path) -> tuple[MeasuredStep, ...]:
    """Every row. Raises ValueError with the line of one that is no step of a plan."""
    with path.open(encoding="utf-8", newline="") as file:
        steps = []
        for line, row in enumerate(csv.DictReader(file), 2):
            try:
                steps.append(_step(row))
            except (ValueError, KeyError, TypeError) as error:
                raise ValueError(f"{path.name}, line {line}: {error}") from None
        return tuple(steps)


def _step(row: Mapping[str, str]) -> MeasuredStep:
    def whole(name: str, default: int = 1) -> int:
        return int(row[name] or default)

    gpus, tensor, pipeline, context = (whole(name) for name in ("gpus", "tensor", "pipeline", "context"))
    across = tensor * pipeline * context
    if gpus % across:
        raise ValueError(f"{gpus} GPUs do not divide by {across}")
    data, micro_batch, batch = gpus // across, whole("micro_batch"), whole("global_batch")
    if batch % data:
        raise ValueError(f"a batch of {batch} does not divide by {data}")
    seconds = float(row["step_seconds"])
    if not 0 < seconds < 1e6:
        raise ValueError(f"{seconds} is no step's time in seconds")
    framework, matmul = row["framework"], row["precision"] or "bf16"
    half = Precision.FP32 if matmul == "fp32" else Precision.FP16 if matmul == "fp16" else Precision.BF16
    plan = TrainingPlan(
        framework=framework,
        model=_model(row),
        micro_batch=min(micro_batch, batch // data),
        sequence=whole("sequence"),
        accumulation=max(1, -(-batch // (data * micro_batch))),
        parallel=Parallelism(
            data=data,
            tensor=tensor,
            pipeline=pipeline,
            context=context,
            expert=whole("expert"),
            expert_tensor=whole("expert_tensor", 0),
            virtual_stages=whole("virtual_stages"),
            sequence_parallel=row["sequence_parallel"] == "1",
            sharding=Sharding(row["sharding"] or "none"),
            shards=whole("shards", 0),
        ),
        weights=half,
        compute=half,
        gradient_bytes=2.0 if row["condition"].startswith(("NeMo", "pure")) else 4.0,
        recompute=Recompute(row["recompute"] or "none"),
        attention=Attention(row["attention"] or "flash"),
        style=Style.EAGER if framework in ("fsdp", "llm-foundry") else Style.FUSED,
        input_bytes=1.0 if matmul in ("fp8", "mxfp8", "nvfp4") else 0.0,
    )
    usual = next(
        (link for gpu, link in _LINKS.items() if row["gpu"].startswith(gpu) and row["gpus_per_node"] == "4"), ""
    )
    gpu, link = _EXPORTED.get(row["gpu"], (row["gpu"], usual))
    cluster = ClusterDescription(gpu, whole("gpus_per_node"), row["network"], link)
    return MeasuredStep(row["family"], plan, cluster, matmul, seconds, row["condition"], row["source"])


def _model(row: Mapping[str, str]) -> ModelShape:
    if row["model"]:
        return replace(find_language_model(row["model"]), towers=0)
    experts = Experts(*map(int, row["experts"].split(":"))) if row["experts"] else None
    latent = LatentAttention(*map(int, row["latent"].split(":"))) if row["latent"] else None
    layers, hidden, heads, kv_heads, head_dim, ffn, vocab = (int(row[name]) for name in _SIZES)
    return ModelShape(
        row["family"],
        layers,
        hidden,
        heads,
        kv_heads,
        head_dim,
        ffn,
        vocab,
        gated=row["gated"] == "1",
        tied=True,
        experts=experts,
        latent=latent,
    )
