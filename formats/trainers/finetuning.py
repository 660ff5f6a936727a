"""LLaMA-Factory, axolotl and ms-swift: configurations on top of transformers' trainer."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from kopt.core.workload.training_plan import Precision, Sharding, TrainingPlan
from kopt.formats.trainers.fields import Fields
from kopt.formats.trainers.names import adapter
from kopt.formats.trainers.trainer import PlanInputs, Trainer
from kopt.formats.trainers.transformers import Surroundings, brain_float_by_default, hf_recipe, surroundings


def llamafactory_plan(
    settings: Mapping[str, Any], *, around: Surroundings | None = None, world_size: int | None = None
) -> TrainingPlan:
    """LLaMA-Factory's arguments (src/llamafactory/hparams): gradient checkpointing unless disabled, LoRA by default.

    Raises:
        PlanError: the model is not known, or a value that cannot be.
    """
    defaults = {"finetuning_type": "lora", "cutoff_len": 2048, "lora_target": "all", "lora_rank": 8}
    fields = Fields(defaults, brain_float_by_default(settings), settings)
    recipe = hf_recipe("llamafactory", fields, around or Surroundings(), world_size)
    return replace(recipe, checkpointing=not fields.flag("disable_gradient_checkpointing")).plan()


def axolotl_plan(
    settings: Mapping[str, Any], *, around: Surroundings | None = None, world_size: int | None = None
) -> TrainingPlan:
    """An axolotl configuration (https://docs.axolotl.ai/docs/config-reference.html).

    Raises:
        PlanError: the model is not known, or a value that cannot be.
    """
    defaults = {"micro_batch_size": 1, "sequence_len": 512}
    fields = Fields(defaults, settings)
    if fields.text("bf16", default="auto") == "auto":
        fields = Fields(defaults, settings, {"bf16": None}, brain_float_by_default(settings))
    recipe = hf_recipe("axolotl", fields, around or Surroundings(), world_size)
    if fields.text("adapter") == "qlora" and not recipe.weights.quantised:
        recipe = replace(recipe, weights=Precision.NF4)
    if recipe.weights.quantised and fields.text("adapter") == "qlora":
        recipe = replace(recipe, weights=Precision.NF4_DOUBLE)  # axolotl quantises the scales as well
    if fields.has("fsdp", "fsdp_config", "fsdp_version"):
        recipe = replace(recipe, sharding=Sharding.PARAMETERS)
    return recipe.plan()


def swift_plan(
    settings: Mapping[str, Any],
    *,
    around: Surroundings | None = None,
    world_size: int | None = None,
    gpus_each: int = 1,
) -> TrainingPlan:
    """ms-swift's arguments (swift/llm/argument): LoRA by default, weights in their own 16 bits, checkpointing on.

    ``gpus_each``: GPUs that each process sees.

    Raises:
        PlanError: the model is not known, or a value that cannot be.
    """
    defaults = {
        "train_type": "lora",
        "per_device_train_batch_size": 1,
        "max_length": 2048,
        "lora_rank": 8,
        "gradient_accumulation_steps": 16,
        "gradient_checkpointing": True,
        "target_modules": "all-linear",
    }
    fields = Fields(defaults, brain_float_by_default(settings), settings)
    recipe = hf_recipe("ms-swift", fields, around or Surroundings(), world_size)
    if gpus_each > 1 and recipe.pipeline == 1:
        # Where a process has several GPUs, its layers are spread over them (device_map: auto).
        recipe = replace(recipe, gpus=recipe.gpus * gpus_each, pipeline=gpus_each, accumulation=1)
    if fields.name_list("target_modules") == ["DEFAULT"] and recipe.adapter is not None:
        recipe = replace(recipe, adapter=adapter(recipe.model, recipe.adapter.rank, ["q_proj", "k_proj", "v_proj"]))
    return recipe.plan()


def _llamafactory(inputs: PlanInputs) -> TrainingPlan:
    return llamafactory_plan(inputs.settings, around=surroundings(inputs), world_size=inputs.world_size)


def _axolotl(inputs: PlanInputs) -> TrainingPlan:
    return axolotl_plan(inputs.settings, around=surroundings(inputs), world_size=inputs.world_size)


def _swift(inputs: PlanInputs) -> TrainingPlan:
    around, processes = surroundings(inputs), inputs.started() or 1
    each = 1 if around.deepspeed is not None else max(1, inputs.visible_gpus() // processes)
    return swift_plan(inputs.settings, around=around, world_size=inputs.world_size, gpus_each=each)


LLAMAFACTORY = Trainer(
    "llamafactory",
    _llamafactory,
    processes=PlanInputs.started,
    commands=("llamafactory-cli", "lmf"),
    modules=("llamafactory",),
    config_is_word=True,
)
AXOLOTL = Trainer(
    "axolotl", _axolotl, commands=("axolotl",), modules=("axolotl.",), folders=("axolotl",), config_is_word=True
)
SWIFT = Trainer(
    "ms-swift",
    _swift,
    processes=PlanInputs.started,
    commands=("swift",),
    modules=("swift.",),
    folders=("swift",),
    config_options=("--config",),
    config_is_word=True,
)
