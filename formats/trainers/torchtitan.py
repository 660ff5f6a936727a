"""torchtitan's jobs: TOML with degrees of parallelism, FSDP2 and its own selective checkpointing."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from kopt.core.workload.training_plan import ModelShape, Precision, Sharding, Style, TrainingPlan
from kopt.formats.trainers.fields import Fields
from kopt.formats.trainers.models import model_of
from kopt.formats.trainers.names import precision
from kopt.formats.trainers.recipe import Recipe, length
from kopt.formats.trainers.trainer import PlanInputs, Trainer

_COMPILED_LOSS, _PLAIN_LOSS = 10.0, 14.0
_SECTIONS = ("parallelism", "training", "experimental")
"""Where degrees of parallelism stand; before there was a section of their own, in the others."""


def torchtitan_plan(
    settings: Mapping[str, Any], *, model_config: Mapping[str, Any] | None = None, world_size: int | None = None
) -> TrainingPlan:
    """A torchtitan job's TOML with its overrides (``--training.seq_len 4096``).

    Raises:
        PlanError: the model is not known, or sizes do not divide the GPUs.
    """
    fields = Fields(settings)
    recipe = _with_pipeline(_recipe(fields, _model(fields, model_config), world_size or 1), fields)
    return _with_checkpointing(_with_replicas(recipe, fields), fields).plan()


def _model(fields: Fields, config: Mapping[str, Any] | None) -> ModelShape:
    flavor = f"{fields.text('model.name')}-{fields.text('model.flavor')}"
    name = flavor.replace("llama3-405B", "llama-3.1-405b").replace("llama3", "llama-3.1")
    return model_of(Fields({"model": name}), config=config)


def _recipe(fields: Fields, model: ModelShape, gpus: int) -> Recipe:
    compiled = fields.flag("training.compile", "compile.enable")
    offloads = fields.flag("training.enable_cpu_offload")
    return Recipe(
        framework="torchtitan",
        model=model,
        micro_batch=fields.whole("training.local_batch_size", "training.batch_size", default=8),
        sequence=length(fields, "training.seq_len"),
        # FSDP2 keeps 32-bit shards and gathers them in 16 bits.
        weights=precision(fields.text("training.dtype"), Precision.FP32),
        compute=precision(fields.text("training.mixed_precision_param"), Precision.BF16),
        optimizer=fields.text("optimizer.name", default="AdamW") + "_fused",
        gpus=gpus,
        tensor=_degree(fields, "tensor_parallel"),
        context=_degree(fields, "context_parallel"),
        sharding=Sharding.PARAMETERS,
        offload_parameters=offloads,
        offload_optimizer=offloads,
        style=Style.FUSED if compiled else Style.EAGER,
        loss=_COMPILED_LOSS if compiled else _PLAIN_LOSS,
        unknown=fields.unknown,
    )


def _degree(fields: Fields, kind: str) -> int:
    return fields.whole(*(f"{section}.{kind}_degree" for section in _SECTIONS), default=1)


def _with_replicas(recipe: Recipe, fields: Fields) -> Recipe:
    """Each replica shards its weights among its own ranks alone (hybrid sharding)."""
    replicas = _degree(fields, "data_parallel_replicate")
    across = recipe.tensor * recipe.pipeline * replicas
    if replicas == 1 or across < 1 or recipe.gpus % across:
        return recipe
    return replace(recipe, shards=recipe.gpus // across)


def _with_pipeline(recipe: Recipe, fields: Fields) -> Recipe:
    """A pipeline takes the local batch in parts, and FSDP2 gathers weights once for all parts of a batch and scatters
    gradients after the last."""
    stages = _degree(fields, "pipeline_parallel")
    if stages == 1:
        return recipe
    micro = fields.whole("parallelism.pipeline_parallel_microbatch_size", default=1)
    schedule = fields.text(*(f"{section}.pipeline_parallel_schedule" for section in _SECTIONS))
    interleaved = "interleaved" in schedule.lower()
    recipe = replace(
        recipe,
        pipeline=stages,
        micro_batch=micro,
        accumulation=max(1, recipe.micro_batch // max(1, micro)),
        virtual_stages=2 if interleaved else 1,
    )
    if fields.text("parallelism.fsdp_reshard_after_forward", default="default") == "always":
        return recipe
    numbers = recipe.model.parameters() / max(1, recipe.tensor * recipe.pipeline)
    return replace(recipe, gather_numbers=2.0 * recipe.model.parameters(), buffers=recipe.buffers + 4.0 * numbers)


def _with_checkpointing(recipe: Recipe, fields: Fields) -> Recipe:
    mode = fields.text("activation_checkpoint.mode", default="selective")
    products = mode == "selective" and fields.text("activation_checkpoint.selective_ac_option", default="op") == "op"
    if mode == "selective" and not products:
        fields.assume("activation_checkpoint", "selective checkpointing of some layers is taken as none")
    return replace(recipe, checkpointing=mode == "full", checkpoint_products=products, unknown=fields.unknown)


def _plan(inputs: PlanInputs) -> TrainingPlan:
    return torchtitan_plan(inputs.settings, model_config=inputs.model_config(), world_size=inputs.world_size)


TRAINER = Trainer(
    "torchtitan",
    _plan,
    modules=("torchtitan",),
    folders=("torchtitan",),
    options=lambda names: "--job.config_file" in names,
    config_options=("--job.config_file", "--job.config-file", "--config_file", "--config"),
)
