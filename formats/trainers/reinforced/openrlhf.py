"""OpenRLHF (https://github.com/OpenRLHF/OpenRLHF): ``openrlhf.cli.train_*``, on DeepSpeed, with roles on Ray and vLLM.

Options have sections since 0.10 (``--ds.zero_stage``); the names before that are read as well.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from kopt.core.workload.training_plan import ModelShape, Precision, TrainingPlan
from kopt.formats.trainers.fields import Fields
from kopt.formats.trainers.models import beside, model_of
from kopt.formats.trainers.names import adapter, precision
from kopt.formats.trainers.preferences import LOG_PROBABILITIES, with_method
from kopt.formats.trainers.recipe import Recipe
from kopt.formats.trainers.trainer import PlanInputs, Trainer

_MODULE = "openrlhf.cli.train_"
_METHODS = {"dpo": "dpo", "kto": "kto", "rm": "rm", "prm": "prm", "kd": "gkd"}
_ACTOR, _TRAINED = "actor.model_name_or_path", "model.model_name_or_path"
_MOST_TOKENS = 16192
_TRAINED_BYTES = 16.0
"""Per number of a critic under DeepSpeed: 16-bit weights and gradients, 32-bit master and Adam's two states."""


def openrlhf_plan(
    settings: Mapping[str, Any],
    *,
    program: str = "sft",
    model_config: Mapping[str, Any] | None = None,
    world_size: int | None = None,
) -> TrainingPlan:
    """``program`` is what follows ``openrlhf.cli.train_``: sft, dpo, rm, ppo_ray …

    Raises:
        PlanError: the model is not known, or a value that cannot be.
    """
    fields = Fields({"trl_method": _METHODS.get(program, "")}, settings)
    reinforces = program.startswith("ppo")
    model = model_of(fields, _ACTOR if reinforces else _TRAINED, "pretrain", config=model_config)
    gpus = _gpus_of(fields, "actor") if reinforces else world_size or 1
    recipe = _recipe(fields, model, gpus)
    recipe = _with_roles(recipe, fields) if reinforces else with_method(recipe, fields)
    offloads = fields.flag("ds.adam_offload", "adam_offload")
    stage = fields.whole("ds.zero_stage", "zero_stage", default=2)
    return recipe.with_deepspeed(stage, offload_optimizer=offloads, offload_parameters=False, bucket=5e8).plan()


def _recipe(fields: Fields, model: ModelShape, gpus: int) -> Recipe:
    weights = precision(fields.text("ds.param_dtype", "param_dtype"), Precision.BF16)
    packs = fields.flag("ds.packing_samples", "packing_samples")
    recipe = Recipe(
        framework="openrlhf",
        model=model,
        micro_batch=fields.whole("train.micro_batch_size", "micro_train_batch_size", default=1),
        sequence=fields.whole("data.max_len", "max_len", default=2048),
        weights=weights,
        compute=weights,
        gpus=gpus,
        tensor=max(1, fields.whole("ds.tensor_parallel_size", "ds_tensor_parallel_size", default=1)),
        context=max(1, fields.whole("ds.ring_attn_size", "ring_attn_size", default=1)),
        checkpointing=fields.flag(
            "actor.gradient_checkpointing_enable", "model.gradient_checkpointing_enable", "gradient_checkpointing"
        ),
        varying=not packs,
        unknown=fields.unknown,
    )
    rank = fields.whole("ds.lora.rank", "lora_rank", default=0)
    if rank:
        targets = fields.name_list("ds.lora.target_modules", "target_modules") or ["all-linear"]
        dropout = fields.real("ds.lora.dropout", "lora_dropout", default=0.0) > 0
        recipe = replace(recipe, adapter=adapter(model, rank, targets, dropout=dropout))
    if fields.flag("ds.load_in_4bit", "load_in_4bit"):
        recipe = replace(recipe, weights=Precision.NF4)
    return recipe


def _gpus_of(fields: Fields, role: str) -> int:
    nodes = fields.whole(f"{role}.num_nodes", f"{role}_num_nodes", default=1)
    return max(1, nodes) * max(1, fields.whole(f"{role}.num_gpus_per_node", f"{role}_num_gpus_per_node", default=8))


def _with_roles(recipe: Recipe, fields: Fields) -> Recipe:
    """The GPU of an actor that learns, with the roles that lie on the same GPUs and the engine that generates."""
    recipe = replace(recipe, loss=LOG_PROBABILITIES)
    if fields.flag("train.dynamic_batch_enable", "use_dynamic_batch"):
        most = fields.whole("train.max_tokens_per_gpu", "train_max_tokens_per_gpu", default=_MOST_TOKENS)
        recipe = replace(recipe, micro_batch=1, sequence=most * recipe.context, varying=False)
    elif not fields.has("data.max_len", "max_len"):
        prompt = fields.whole("data.prompt_max_len", "prompt_max_len", default=1024)
        answer = fields.whole("rollout.max_new_tokens", "generate_max_len", default=1024)
        recipe = replace(recipe, sequence=prompt + answer)
    if not fields.flag("train.colocate_all", "colocate_all_models"):
        return recipe
    engines = fields.whole("vllm.num_engines", "vllm_num_engines", default=0)
    share = fields.real("vllm.gpu_memory_utilization", "vllm_gpu_memory_utilization", default=0.95)
    return replace(
        recipe,
        beside=_beside(recipe, fields),
        engine_share=share if engines else 0.0,
        engine_split=max(1, fields.whole("vllm.tensor_parallel_size", "vllm_tensor_parallel_size", default=1)),
        engine_sleeps=fields.flag("vllm.enable_sleep", "vllm_enable_sleep"),
    )


def _beside(recipe: Recipe, fields: Fields) -> float:
    """Bytes of the critic, the reference and the reward model, over all ranks; a critic asleep has only its weights."""
    own = recipe.model.parameters()
    reference = fields.real("algo.kl.init_coef", "init_kl_coef", default=0.01) > 0
    result = 2.0 * own if reference and not fields.flag("ref.offload", "ref_reward_offload") else 0.0
    reward = fields.text("reward.model_name_or_path", "reward_pretrain")
    if reward and not fields.flag("reward.offload", "ref_reward_offload"):
        result += 2.0 * beside(fields, "reward model", reward, recipe.model).parameters()
    named = fields.text("critic.model_name_or_path", "critic_pretrain", default=reward)
    estimator = fields.text("algo.advantage.estimator", "advantage_estimator", default="gae")
    if named and estimator == "gae":
        each = 2.0 if fields.flag("ds.enable_sleep", "deepspeed_enable_sleep") else _TRAINED_BYTES
        result += each * beside(fields, "critic", named, recipe.model).parameters()
    return result


def _plan(inputs: PlanInputs) -> TrainingPlan:
    return openrlhf_plan(
        inputs.settings,
        program=inputs.script.removeprefix(_MODULE),
        model_config=inputs.model_config(),
        world_size=inputs.world_size,
    )


def _processes(inputs: PlanInputs) -> int | None:
    is_ray = inputs.script.startswith(f"{_MODULE}ppo")
    return _gpus_of(Fields(inputs.settings), "actor") if is_ray else None


TRAINER = Trainer("openrlhf", _plan, modules=(_MODULE,), processes=_processes)
