"""lit-llama (https://github.com/Lightning-AI/lit-llama): scripts whose settings are constants at their top.

What each does and its defaults are those of ``finetune/*.py`` and ``pretrain/*.py`` (Lightning-AI/lit-llama 2a464de).
Model code and adapters are those that became litgpt's.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Any

from kopt.core.workload.training_plan import PlanError, TrainingPlan
from kopt.formats.trainers.fields import Fields
from kopt.formats.trainers.litgpt import litgpt_plan
from kopt.formats.trainers.trainer import PlanInputs, Trainer

_LOSS = 10.0
"""Bytes per logit in 16 bits, not in chunks: logits, their shifted copy, its log-softmax, and gradients of two."""


@dataclass(frozen=True)
class _Script:
    """Its command in litgpt's words, and its constants where the script is not at hand."""

    command: str
    devices: int
    micro_batch: int
    length: int
    precision: str = "bf16-true"
    accumulation: int = 2


_SCRIPTS: Mapping[str, _Script] = {
    "lora.py": _Script("finetune_lora", 1, 4, 256),
    "adapter.py": _Script("finetune_adapter", 1, 4, 256),
    "adapter_v2.py": _Script("finetune_adapter_v2", 1, 4, 256),
    # Weights are made in 16 bits, whatever Fabric's "bf16-mixed" says.
    "full.py": _Script("finetune_full", 4, 4, 512),
    "redpajama.py": _Script("pretrain", 4, 5, 2048),
    "shakespeare.py": _Script("pretrain", 4, 2, 1024, "bf16-mixed", 1),
}


def lit_llama_plan(
    script: str, constants: Mapping[str, Any], settings: Mapping[str, Any], *, world_size: int | None = None
) -> TrainingPlan:
    """What ``script`` trains with the constants it has, and what ``settings`` of its command set (``--devices 8``).

    Raises:
        PlanError: another script, or a value that cannot be.
    """
    known = _of(script)
    fields = Fields(constants, settings)
    named = {
        "": [known.command, "llama-7b"],
        "precision": known.precision,
        "train.micro_batch_size": fields.whole("micro_batch_size", default=known.micro_batch),
        "train.max_seq_length": fields.whole("max_seq_length", "block_size", default=known.length),
        "lora_r": fields.whole("lora_r", default=8),
        "optimizer": "AdamW" if known.devices == 1 else "fused AdamW",  # foreach=False steps with no copies either
    }
    if script.endswith("shakespeare.py"):
        named["train.micro_batch_size"] = fields.whole("batch_size", default=known.micro_batch)
    gpus = world_size if world_size and world_size > 1 else _devices(fields, known)
    plan = litgpt_plan(named, world_size=gpus)
    fields.assume("model", "its scripts train LLaMA 7B: one that was changed to another size is not seen")
    return replace(
        plan,
        framework="lit-llama",
        accumulation=known.accumulation,
        logit_bytes=_LOSS,
        unknown=(*plan.unknown, *fields.unknown),
    )


def _of(script: str) -> _Script:
    """Raises PlanError for a script that does not train."""
    name = PurePosixPath(script).name
    if name not in _SCRIPTS or "evaluate" in PurePosixPath(script).parts or "generate" in PurePosixPath(script).parts:
        raise PlanError(f"{script[:80]} does not train; give finetune/lora.py, full.py or adapter.py, or pretrain/…")
    return _SCRIPTS[name]


def _devices(fields: Fields, known: _Script) -> int:
    return fields.whole("devices", default=known.devices)


def _constants(inputs: PlanInputs) -> Mapping[str, Any]:
    content = inputs.load(inputs.script) or {}
    return {name: value for name, value in content.items() if isinstance(value, int | float)}


def _plan(inputs: PlanInputs) -> TrainingPlan:
    return lit_llama_plan(inputs.script, _constants(inputs), inputs.settings, world_size=inputs.world_size)


def _processes(inputs: PlanInputs) -> int | None:
    """Fabric starts as many as the script's own number says."""
    return _devices(Fields(_constants(inputs), inputs.settings), _of(inputs.script))


TRAINER = Trainer("lit-llama", _plan, folders=("lit-llama",), packages=("lit_llama",), processes=_processes)
