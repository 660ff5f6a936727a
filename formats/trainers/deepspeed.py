"""DeepSpeed's JSON configuration (https://www.deepspeed.ai/docs/config-json/), on top of a recipe."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from kopt.core.reason import Reason
from kopt.core.workload.training_plan import Precision, TrainingPlan
from kopt.formats.trainers.fields import Fields
from kopt.formats.trainers.models import model_of
from kopt.formats.trainers.recipe import Recipe
from kopt.formats.trainers.trainer import STAGE_IN_NAME, PlanInputs, Trainer

_DEFAULT_BUCKET = 5e8


def apply_deepspeed(recipe: Recipe, document: Mapping[str, Any]) -> Recipe:
    """``recipe`` with what the configuration sets; "auto" leaves the recipe's value.

    Raises:
        PlanError: a value that DeepSpeed would refuse.
    """
    fields = Fields(document)
    zero = fields.part("zero_optimization")
    stage = zero.whole("stage", default=0)
    if fields.has(STAGE_IN_NAME):
        # 16 bits, whichever: both take the same memory.
        message = (
            f"{fields.text(STAGE_IN_NAME)[:80]} cannot be read: ZeRO stage {stage}, as its name says, with defaults"
        )
        recipe = replace(recipe, unknown=(*recipe.unknown, Reason("ASSUMED", message, {"setting": "deepspeed"})))
    half = recipe.weights
    if fields.part("bf16").flag("enabled"):
        half = Precision.BF16
    elif fields.part("fp16").flag("enabled"):
        half = Precision.FP16
    micro = fields.whole("train_micro_batch_size_per_gpu", default=recipe.micro_batch)
    if recipe.step_in_backward:
        # A loop of LOMO's takes batches as its own arguments say; transformers refuses what contradicts them.
        micro = max(micro, recipe.micro_batch)
    # An optimizer of the file is DeepSpeed's own, in place of what the script makes.
    named = fields.part("optimizer").text("type")
    recipe = replace(
        recipe,
        weights=recipe.weights if recipe.weights.quantised else half,
        compute=half if not half.quantised else recipe.compute,
        micro_batch=micro,
        accumulation=fields.whole("gradient_accumulation_steps", default=recipe.accumulation),
        optimizer=named or recipe.optimizer,
        step_in_backward="lomo" in named.lower() if named else recipe.step_in_backward,
    )
    where = "device"
    bucket = zero.real("reduce_bucket_size", default=_DEFAULT_BUCKET)
    if zero.text("reduce_bucket_size") == "auto":
        bucket = recipe.model.hidden**2  # as transformers fills it in
    # One bucket fills while the other is reduced.
    buckets = 2 if zero.flag("overlap_comm", default=stage == 3) and stage < 3 else 1
    return recipe.with_deepspeed(
        stage,
        offload_optimizer=zero.part("offload_optimizer").text(where) in ("cpu", "nvme") or zero.flag("cpu_offload"),
        offload_parameters=zero.part("offload_param").text(where) in ("cpu", "nvme"),
        bucket=bucket * buckets * zero.flag("contiguous_gradients", default=True),
    )


def deepspeed_plan(
    settings: Mapping[str, Any],
    *,
    config: Mapping[str, Any] | None = None,
    model_config: Mapping[str, Any] | None = None,
    world_size: int | None = None,
) -> TrainingPlan:
    """The plan of a script under DeepSpeed whose arguments name the model.

    Raises:
        PlanError: no model is named, or a value that cannot be.
    """
    fields = Fields(settings)
    model = model_of(fields, config=model_config)
    micro = fields.whole("per_device_train_batch_size", "micro_batch_size", "batch_size", default=1)
    sequence = fields.whole("max_seq_len", "max_seq_length", "block_size", "seq_length", "max_length", default=0)
    if not sequence:
        sequence = 2048
        fields.assume("sequence", "the length of sequences is not given: 2048 tokens")
    recipe = Recipe(
        "deepspeed",
        model,
        micro,
        sequence,
        gpus=world_size or 1,
        unknown=fields.unknown,
        checkpointing=fields.flag("gradient_checkpointing"),
    )
    return apply_deepspeed(recipe, config or {}).plan()


def _plan(inputs: PlanInputs) -> TrainingPlan:
    model = inputs.model_config()
    return deepspeed_plan(inputs.settings, config=inputs.deepspeed(), model_config=model, world_size=inputs.world_size)


TRAINER = Trainer(
    "deepspeed",
    _plan,
    config_options=("--deepspeed_config",),
    config_keys=("--deepspeed_config", "--deepspeed"),
    config_is_deepspeeds=True,
)
