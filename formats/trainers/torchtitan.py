"""torchtitan's jobs: TOML, or a configuration of its own by name; FSDP2 and its own selective checkpointing."""

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
_CHUNKS = 8
"""Parts in which the loss of configurations by name is computed (``torchtitan/components/loss.py``)."""
_CONFIGS: dict[str, tuple[str, int, int, str, int, int]] = {
    "llama3_debugmodel": ("", 8, 2048, "selective", 1, 1),
    "llama3_8b": ("llama-3.1-8b", 1, 8192, "selective", 1, 1),
    "llama3_70b": ("llama-3.1-70b", 8, 8192, "full", 8, 1),
    "llama3_405b": ("llama-3.1-405b", 2, 8192, "full", 8, 1),
    "deepseek_v3_debugmodel": ("", 8, 2048, "selective", 1, 1),
    "deepseek_v3_16b": ("deepseek-v2-lite", 4, 4096, "selective", 1, 8),
    "deepseek_v3_671b": ("deepseek-v3", 4, 4096, "selective", 1, 2),
    "qwen3_debugmodel": ("", 8, 2048, "selective", 1, 1),
    "qwen3_moe_debug": ("", 4, 4096, "selective", 1, 1),
    "qwen3_0_6b": ("qwen3-0.6b", 4, 4096, "selective", 1, 1),
    "qwen3_1_7b": ("qwen3-1.7b", 4, 4096, "selective", 1, 1),
    "qwen3_8b": ("qwen3-8b", 1, 2048, "selective", 1, 1),
    "qwen3_14b": ("qwen3-14b", 4, 4096, "full", 1, 1),
    "qwen3_30b_a3b": ("qwen3-30b-a3b", 2, 4096, "full", 1, 1),
    "qwen3_32b": ("qwen3-32b", 2, 4096, "full", 1, 1),
    "gpt_oss_debugmodel": ("", 8, 2048, "selective", 1, 1),
    "gpt_oss_20b": ("gpt-oss-20b", 1, 8192, "full", 1, 1),
    "gpt_oss_120b": ("gpt-oss-120b", 1, 8192, "full", 1, 1),
}
"""Model, sequences of one pass, their length, checkpointing, tensor and expert parallel degrees of the configurations
in ``torchtitan/models/*/config_registry.py`` (pytorch/torchtitan b5bcd76); "" is a model of a few million weights."""
_BATCH = ("training.local_batch_size", "training.batch_size")
_SMALL = {"dim": 256, "n_layers": 8, "n_heads": 16, "vocab_size": 2048}
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
    plan = _with_checkpointing(_with_replicas(recipe, fields), fields).plan()
    experts = _degree(fields, "expert_parallel")
    if experts == 1 or plan.model.experts is None or plan.parallel.world % experts:
        return plan
    return replace(plan, parallel=replace(plan.parallel, expert=experts, expert_tensor=1))


def built_in(name: str) -> Mapping[str, Any] | None:
    """The settings of a configuration that comes with torchtitan, or of the longest name that ``name`` varies."""
    key = name.removeprefix("graph_trainer_").removeprefix("sft_")
    base = max((known for known in _CONFIGS if key.startswith(known)), key=len, default=None)
    if base is None:
        return None
    model, sequences, length_, mode, tensor, experts = _CONFIGS[base]
    return {
        "model.spec": model or _SMALL,
        "training.local_batch_size": sequences,
        "training.seq_len": length_,
        "training.loss_chunks": _CHUNKS,
        "activation_checkpoint.mode": mode,
        "parallelism.tensor_parallel_degree": tensor,
        "parallelism.expert_parallel_degree": experts,
    }


def _model(fields: Fields, config: Mapping[str, Any] | None) -> ModelShape:
    spec = fields.raw("model.spec")
    if spec is not None:
        return model_of(Fields(spec if isinstance(spec, Mapping) else {"model": spec}), config=config)
    flavor = f"{fields.text('model.name')}-{fields.text('model.flavor')}"
    name = flavor.replace("llama3-405B", "llama-3.1-405b").replace("llama3", "llama-3.1")
    return model_of(Fields({"model": name}), config=config)


def _recipe(fields: Fields, model: ModelShape, gpus: int) -> Recipe:
    compiled = fields.flag("training.compile", "compile.enable")
    offloads = fields.flag("training.enable_cpu_offload")
    length_ = _length(fields)
    tokens = fields.whole("training.num_tokens_per_microbatch_per_dp_rank", default=0)
    micro = max(1, tokens // length_) if tokens else fields.whole(*_BATCH, default=8)
    loss = _COMPILED_LOSS if compiled else _PLAIN_LOSS
    return Recipe(
        framework="torchtitan",
        model=model,
        micro_batch=micro,
        sequence=length_,
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
        loss=loss / max(1, fields.whole("training.loss_chunks", default=1)),
        unknown=fields.unknown,
    )


def _length(fields: Fields) -> int:
    """An override by either name wins over the configuration's own."""
    return fields.whole("training.max_context_length", default=0) or length(fields, "training.seq_len")


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
    configs=built_in,
)
