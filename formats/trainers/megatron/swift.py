"""Megatron-SWIFT (``megatron sft|pt|rlhf`` of ms-swift): Megatron-core under models of the hub, or adapters on them."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from kopt.core.workload.training_plan import PlanError, TrainingPlan
from kopt.formats.trainers.fields import Fields
from kopt.formats.trainers.megatron.trainer import megatron_plan
from kopt.formats.trainers.models import model_of
from kopt.formats.trainers.names import adapter
from kopt.formats.trainers.preferences import METHODS
from kopt.formats.trainers.trainer import PlanInputs, Trainer

_DEFAULTS = {
    "bf16": True,
    "micro_batch_size": 1,
    "use_distributed_optimizer": True,
    "expert_tensor_parallel_size": 1,
    "recompute_granularity": "selective",
    "hidden_dropout": 0,
    "attention_dropout": 0,
    "cross_entropy_loss_fusion": True,
    "cross_entropy_fusion_impl": "native",
}
"""Of swift/megatron/arguments, where they differ from Megatron-LM's."""
_LONGEST_DEFAULT = 2048


def megatron_swift_plan(
    settings: Mapping[str, Any], *, model_config: Mapping[str, Any] | None = None, world_size: int | None = None
) -> TrainingPlan:
    """The plan of a command that names a model and Megatron's degrees of parallelism.

    Raises:
        PlanError: the model is not known, or sizes do not divide each other.
    """
    fields = Fields(_DEFAULTS, settings)
    command = fields.positional()[:1]
    if command and command[0] not in ("pt", "sft", "rlhf"):
        raise PlanError(f"megatron {command[0][:40]} does not train; give pt, sft or rlhf")
    model = model_of(fields, config=model_config)
    length = {"seq_length": fields.whole("max_length", "seq_length", default=_LONGEST_DEFAULT)}
    plan = megatron_plan({**_DEFAULTS, **settings, **length}, model=model, world_size=world_size)
    plan = replace(plan, framework="megatron-swift", varying=not fields.flag("packing"))
    kind = fields.text("tuner_type", "train_type", default="full").lower()
    return _with_method(_with_adapter(plan, fields) if kind != "full" else plan, fields, whole=kind == "full")


def _with_adapter(plan: TrainingPlan, fields: Fields) -> TrainingPlan:
    targets = fields.name_list("target_modules") or ["all-linear"]
    return replace(plan, adapter=adapter(plan.model, fields.whole("lora_rank", default=8), targets))


def _with_method(plan: TrainingPlan, fields: Fields, *, whole: bool) -> TrainingPlan:
    """What learning from preferences holds beside: a reference, a teacher, an engine that generates."""
    beside = plan.beside_bytes
    kind = METHODS.get(fields.text("rlhf_type")) or METHODS.get(fields.text("task_type"))
    if kind is not None:
        loss = 0.0 if not kind.scores else plan.logit_bytes
        plan = replace(plan, micro_batch=plan.micro_batch * kind.sequences, logit_bytes=loss)
    if kind is not None and ((kind.reference and whole) or (kind.teacher and fields.has("teacher_model"))):
        beside += 2.0 * plan.model.parameters() / (plan.parallel.tensor * plan.parallel.pipeline)
    if not fields.flag("use_vllm") or fields.text("vllm_mode", default="colocate") != "colocate":
        return replace(plan, beside_bytes=beside)
    return replace(
        plan,
        beside_bytes=beside,
        engine_share=fields.real("vllm_gpu_memory_utilization", default=0.9),
        engine_split=max(1, fields.whole("vllm_tensor_parallel_size", default=1)),
    )


def _plan(inputs: PlanInputs) -> TrainingPlan:
    return megatron_swift_plan(inputs.settings, model_config=inputs.model_config(), world_size=inputs.world_size)


TRAINER = Trainer(
    "megatron-swift",
    _plan,
    commands=("megatron",),
    config_options=("--config",),
    config_is_word=True,
    processes=PlanInputs.started,
)
