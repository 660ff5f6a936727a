"""torchtune's recipes: configurations whose components name model, adapter, loss and optimizer.

Those that come with it are known by name (torchtune 0.6.1, BSD-3-Clause; ``scripts/torchtune_configs.py``).
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from importlib.resources import files
from typing import Any

from kopt.core.workload.training_plan import ModelShape, Precision, Sharding, Style, TrainingPlan
from kopt.formats.trainers.fields import Fields
from kopt.formats.trainers.models import model_of
from kopt.formats.trainers.names import adapter, precision
from kopt.formats.trainers.recipe import Recipe, length
from kopt.formats.trainers.trainer import PlanInputs, Trainer

_CHUNKED_LOSS = 7.0
"""16-bit logits of all chunks and their 32-bit softmax, and one chunk's gradients."""
_PLAIN_LOSS = 14.0
_TARGETS = {"q_proj": "q_proj", "k_proj": "k_proj", "v_proj": "v_proj", "output_proj": "o_proj"}
_LENGTHS = ("tokenizer.max_seq_len", "max_seq_len")


def torchtune_plan(
    settings: Mapping[str, Any], *, model_config: Mapping[str, Any] | None = None, world_size: int | None = None
) -> TrainingPlan:
    """A torchtune recipe's configuration with its overrides.

    Raises:
        PlanError: the model is not known, or a value that cannot be.
    """
    fields = Fields(settings)
    component = fields.text("model._component_", "model._component", "model")
    model = _model(component, model_config)
    recipe = _with_adapter(_recipe(fields, model, world_size or 1), fields, component)
    return (replace(recipe, weights=Precision.NF4_DOUBLE) if "qlora" in component else recipe).plan()


def _recipe(fields: Fields, model: ModelShape, gpus: int) -> Recipe:
    packed = fields.flag("dataset.packed")
    if not packed:
        fields.assume("dataset.packed", "batches of varying length are taken to reach the longest that is allowed")
    held = precision(fields.text("dtype"), Precision.BF16)
    optimizer = _optimizer(fields)
    return Recipe(
        framework="torchtune",
        model=model,
        micro_batch=fields.whole("batch_size", default=2),
        sequence=length(fields, *_LENGTHS),
        accumulation=fields.whole("gradient_accumulation_steps", default=1),
        weights=held,
        compute=held,
        optimizer=optimizer,
        gpus=gpus,
        sharding=Sharding.PARAMETERS,
        offload_parameters=fields.flag("fsdp_cpu_offload"),
        offload_optimizer=fields.flag("fsdp_cpu_offload") or "CPUOffload" in optimizer,
        checkpointing=fields.flag("enable_activation_checkpointing"),
        offload_activations=fields.flag("enable_activation_offloading"),
        style=Style.FUSED if fields.flag("compile") else Style.EAGER,
        step_in_backward=fields.flag("optimizer_in_bwd"),
        loss=_loss_bytes(fields),
        varying=not packed and fields.has(*_LENGTHS),
        unknown=fields.unknown,
    )


def _loss_bytes(fields: Fields) -> float:
    loss = fields.text("loss._component_", "loss")
    return _CHUNKED_LOSS if any(word in loss for word in ("Chunk", "LinearCrossEntropy")) else _PLAIN_LOSS


def _with_adapter(recipe: Recipe, fields: Fields, component: str) -> Recipe:
    """A low-rank adapter where the component or the recipe's name has one."""
    if "lora" not in component and not any("lora" in word for word in fields.positional()):
        return recipe
    targets = [_TARGETS.get(name, name) for name in fields.name_list("model.lora_attn_modules")] or ["q_proj", "v_proj"]
    if fields.flag("model.apply_lora_to_mlp"):
        targets += ["gate_proj", "up_proj", "down_proj"]
    rank = fields.whole("model.lora_rank", default=8)
    return replace(recipe, adapter=adapter(recipe.model, rank, targets, dropout=False))


def _model(component: str, config: Mapping[str, Any] | None) -> ModelShape:
    """``torchtune.models.llama3_1.lora_llama3_1_8b`` names the model in its last part."""
    name = component.rpartition(".")[2].removeprefix("qlora_").removeprefix("lora_").removesuffix("_instruct")
    for old, new in (
        ("code_llama2", "llama-2"),
        ("gemma2", "gemma-2"),
        ("phi3", "phi-3"),
        ("phi4_14b", "phi-4"),
        ("0_5b", "0.5b"),
        ("1_5b", "1.5b"),
        ("llama3_1", "llama-3.1"),
        ("llama3_2", "llama-3.2"),
        ("llama3_3", "llama-3.3"),
        ("qwen2_5", "qwen2.5"),
        ("llama2", "llama-2"),
        ("llama3", "llama-3"),
        ("_", "-"),
    ):
        name = name.replace(old, new)
    return model_of(Fields({"model": name}), config=config)


def _optimizer(fields: Fields) -> str:
    name = fields.text("optimizer._component_", "optimizer", default="torch.optim.AdamW")
    return name + ("_fused" if fields.flag("optimizer.fused") else "")


@cache
def configurations() -> dict[str, dict[str, Any]]:
    # Where strangers' sources are read, this module is imported and no installed package can be.
    import orjson

    result: dict[str, dict[str, Any]] = orjson.loads(files(__package__).joinpath("torchtune_configs.json").read_bytes())
    return result


def _plan(inputs: PlanInputs) -> TrainingPlan:
    return torchtune_plan(inputs.settings, model_config=inputs.model_config(), world_size=inputs.world_size)


TRAINER = Trainer(
    "torchtune",
    _plan,
    commands=("tune",),
    modules=("torchtune",),
    config_options=("--config",),
    configs=lambda name: configurations().get(name),
)
