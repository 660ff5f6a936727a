"""What both generations of NeMo share: Megatron's plan with a named model, and adapters on it."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from kopt.core.reason import Reason
from kopt.core.workload.training_plan import ModelShape, TrainingPlan
from kopt.formats.trainers.megatron.trainer import megatron_plan
from kopt.formats.trainers.names import adapter

TARGETS = {
    "linear_qkv": "qkv_proj",
    "attention_qkv": "qkv_proj",
    "linear_proj": "o_proj",
    "attention_dense": "o_proj",
    "linear_fc1": "gate_up_proj",
    "mlp_fc1": "gate_up_proj",
    "linear_fc2": "down_proj",
    "mlp_fc2": "down_proj",
}
"""NeMo's names of linear layers, those of its older configurations too; a fused layer has one adapter."""
ATTENTION, MLP = ("linear_qkv", "linear_proj"), ("linear_fc1", "linear_fc2")


def nemo_plan(
    settings: Mapping[str, Any], model: ModelShape | None, world_size: int, unknown: Sequence[Reason]
) -> TrainingPlan:
    """Megatron-core under NeMo. Raises PlanError as ``megatron_plan``."""
    plan = megatron_plan(settings, model=model, world_size=world_size)
    return replace(plan, framework="nemo", unknown=(*plan.unknown, *unknown))


def with_adapter(plan: TrainingPlan, rank: int, targets: Sequence[str], *, dropout: bool) -> TrainingPlan:
    """Adapters in the model's 16 bits on NeMo's linear layers; all of ``TARGETS``' four where none is named.

    Raises:
        PlanError: a rank of zero.
    """
    named = [TARGETS.get(name.rpartition(".")[2], name) for name in targets or (*ATTENTION, *MLP)]
    if any(name in ("all", "attention") for name in named):
        named = [TARGETS[name] for name in (*ATTENTION, *(MLP if "all" in named else ()))]
    low_rank = adapter(plan.model, rank, named, dropout=dropout)
    # Split over tensor and pipeline ranks as what it goes on is; never less than one rank's part.
    return replace(plan, adapter=replace(low_rank, held_bytes=plan.weights.bytes_each))
