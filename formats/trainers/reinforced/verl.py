"""verl (https://verl.readthedocs.io/en/latest/examples/config.html): settings in Hydra's words, FSDP or Megatron.

Defaults are those of ``verl/trainer/config`` of release 0.7.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from kopt.core.workload.training_plan import ModelShape, PlanError, Precision, Sharding, TrainingPlan
from kopt.formats.trainers.fields import Fields
from kopt.formats.trainers.models import beside, model_of
from kopt.formats.trainers.names import adapter, precision
from kopt.formats.trainers.preferences import LOG_PROBABILITIES
from kopt.formats.trainers.recipe import Recipe
from kopt.formats.trainers.reinforced.easy_r1 import ADAPTER_DTYPE, STATE_BYTES, in_verls_words, is_easy_r1
from kopt.formats.trainers.trainer import PlanInputs, Trainer

_ACTOR, _ROLLOUT, _MODEL = "actor_rollout_ref.actor", "actor_rollout_ref.rollout", "actor_rollout_ref.model"
_MEGATRON = f"{_ACTOR}.megatron"
_FUSED, _OVERWRITTEN, _ENTROPY = 0.5, 6.0, 8.0
"""Bytes per logit where the head and the loss are one kernel; where the gradient overwrites the logits
(``logprobs_from_logits``, verl/utils/torch_functional.py); and beside them for the entropy, if it is in the loss."""
_CRITIC_BYTES = {"fsdp": 12.0, "megatron": 14.0}
"""Per number: what stays between two steps of the critic, whose gradients are freed."""


def verl_plan(
    settings: Mapping[str, Any], *, model_config: Mapping[str, Any] | None = None, world_size: int | None = None
) -> TrainingPlan:
    """A command of ``verl.trainer``: reinforcement learning, or fine-tuning where there is no ``actor_rollout_ref``.

    Raises:
        PlanError: the model is not known, or sizes do not divide the GPUs.
    """
    fields = Fields(settings)
    if any(name.startswith("actor_rollout_ref") for name in settings):
        return _reinforced(fields, model_config, world_size or _gpus(fields))
    return _tuned(fields, model_config, world_size)


def _gpus(fields: Fields) -> int:
    nodes = fields.whole("trainer.nnodes", default=1)
    return max(1, nodes) * max(1, fields.whole("trainer.n_gpus_per_node", default=8))


def _tuned(fields: Fields, config: Mapping[str, Any] | None, gpus: int | None) -> TrainingPlan:
    model = model_of(fields, "model.partial_pretrain", "model.path", config=config)
    names = ("ulysses_sequence_parallel_size", "engine.ulysses_sequence_parallel_size")
    context = max(1, fields.whole(*names, default=1))
    recipe = Recipe(
        framework="verl",
        model=model,
        micro_batch=fields.whole("data.micro_batch_size_per_gpu", "data.micro_batch_size", default=4),
        sequence=fields.whole("data.max_length", default=1024),
        weights=precision(fields.text("model.fsdp_config.model_dtype", "engine.model_dtype"), Precision.FP32),
        optimizer="adamw_torch",
        gpus=gpus or context,
        context=context,
        sharding=Sharding.PARAMETERS,
        checkpointing=fields.flag("model.enable_gradient_checkpointing", default=True),
        offload_parameters=fields.flag("model.fsdp_config.offload_params"),
        offload_optimizer=fields.flag("model.fsdp_config.offload_params"),
        loss=_FUSED if fields.flag("model.use_liger") else LOG_PROBABILITIES,
        varying=fields.flag("use_remove_padding", "model.use_remove_padding"),
        unknown=fields.unknown,
    )
    if fields.has("data.max_token_len_per_gpu") and fields.flag("data.use_dynamic_bsz", default=True):
        tokens = fields.whole("data.max_token_len_per_gpu", default=8192)
        recipe = replace(recipe, micro_batch=1, sequence=tokens * recipe.context, varying=False)
    return _with_adapter(recipe, fields, "model").plan()


def _reinforced(fields: Fields, config: Mapping[str, Any] | None, gpus: int) -> TrainingPlan:
    model = model_of(fields, f"{_MODEL}.path", config=config)
    megatron = fields.text(f"{_ACTOR}.strategy") == "megatron" or fields.has(
        *(f"{_MEGATRON}.{kind}_model_parallel_size" for kind in ("tensor", "pipeline", "expert"))
    )
    recipe = _megatron_actor(fields, model, gpus) if megatron else _fsdp_actor(fields, model, gpus)
    recipe = _with_tokens(recipe, fields)
    recipe = _with_engine(_with_adapter(recipe, fields, _MODEL), fields)
    recipe = replace(recipe, beside=_beside(recipe, fields, "megatron" if megatron else "fsdp"))
    plan = recipe.plan()
    if not megatron:
        return plan
    experts = max(1, fields.whole(f"{_MEGATRON}.expert_model_parallel_size", default=1))
    if experts > 1 and model.experts is not None:
        split = fields.whole(f"{_MEGATRON}.expert_tensor_parallel_size", default=recipe.tensor)
        plan = replace(plan, parallel=replace(plan.parallel, expert=experts, expert_tensor=max(1, split)))
    # Megatron sums gradients in 32 bits, in buffers that stay.
    return replace(plan, gradient_bytes=4.0, preallocated_gradients=True)


def _fsdp_actor(fields: Fields, model: ModelShape, gpus: int) -> Recipe:
    own = f"{_ACTOR}.fsdp_config"
    return Recipe(
        framework="verl",
        model=model,
        micro_batch=1,
        sequence=1,
        weights=precision(fields.text(f"{own}.model_dtype"), Precision.FP32),
        optimizer="adamw_torch",
        gpus=gpus,
        context=max(
            1,
            fields.whole(
                f"{_ACTOR}.ulysses_sequence_parallel_size", f"{own}.ulysses_sequence_parallel_size", default=1
            ),
        ),
        sharding=Sharding.PARAMETERS,
        state_bytes=fields.real(STATE_BYTES, default=0.0) or None,
        # What is gathered for the forward pass may stay until the backward pass.
        gather_numbers=0.0 if fields.flag(f"{own}.reshard_after_forward", default=True) else model.parameters(),
        shards=max(0, fields.whole(f"{own}.fsdp_size", default=0)) if fields.text(f"{own}.fsdp_size") != "-1" else 0,
        checkpointing=fields.flag(f"{_MODEL}.enable_gradient_checkpointing", default=True),
        offload_activations=fields.flag(f"{_MODEL}.enable_activation_offload"),
        # ``offload_policy`` streams weights; the other two bring everything back for each update.
        offload_parameters=fields.flag(f"{own}.offload_policy"),
        offload_optimizer=fields.flag(f"{own}.offload_policy"),
        unknown=fields.unknown,
    )


def _megatron_actor(fields: Fields, model: ModelShape, gpus: int) -> Recipe:
    own = _MEGATRON

    def size(name: str) -> int:
        return max(1, fields.whole(f"{own}.{name}_parallel_size", default=1))

    recomputes = fields.text(
        f"{own}.override_transformer_config.recompute_granularity",
        f"+{own}.override_transformer_config.recompute_granularity",
    )
    return Recipe(
        framework="verl",
        model=model,
        micro_batch=1,
        sequence=1,
        copies=True,
        gpus=gpus,
        tensor=size("tensor_model"),
        pipeline=size("pipeline_model"),
        context=size("context"),
        sharding=Sharding.OPTIMIZER,
        checkpointing=recomputes == "full" or fields.flag(f"{_MODEL}.enable_gradient_checkpointing", default=True),
        unknown=fields.unknown,
    )


def _with_tokens(recipe: Recipe, fields: Fields) -> Recipe:
    """How many tokens one pass of the actor has: a number of sequences, or as many as a limit allows."""
    fused = fields.flag(f"{_MODEL}.use_fused_kernels")
    entropy = _ENTROPY if fields.real(f"{_ACTOR}.entropy_coeff", default=0.0) else 0.0
    recipe = replace(recipe, loss=_FUSED if fused else _OVERWRITTEN + entropy)
    length = fields.whole("data.max_prompt_length", default=512) + fields.whole("data.max_response_length", default=512)
    if fields.flag(f"{_ACTOR}.use_dynamic_bsz"):
        most = fields.whole(f"{_ACTOR}.ppo_max_token_len_per_gpu", default=16384) * recipe.context
        return replace(recipe, micro_batch=1, sequence=max(most, length))
    micro = fields.whole(f"{_ACTOR}.ppo_micro_batch_size_per_gpu", default=0)
    if not micro:
        data = max(1, recipe.gpus // (recipe.tensor * recipe.pipeline * recipe.context))
        micro = max(1, fields.whole(f"{_ACTOR}.ppo_micro_batch_size", default=data) // data)
    return replace(
        recipe,
        micro_batch=micro,
        sequence=length,
        varying=fields.flag(f"{_MODEL}.use_remove_padding", default=True),
        accumulation=2,
    )


def _with_adapter(recipe: Recipe, fields: Fields, section: str) -> Recipe:
    rank = fields.whole(f"{section}.lora_rank", f"{section}.lora.rank", default=0)
    if not rank:
        return recipe
    targets = fields.name_list(f"{section}.target_modules") or ["all-linear"]
    held = precision(fields.text(ADAPTER_DTYPE), Precision.FP32).bytes_each
    return replace(recipe, adapter=replace(adapter(recipe.model, rank, targets, dropout=False), held_bytes=held))


def _with_engine(recipe: Recipe, fields: Fields) -> Recipe:
    """The engine that generates on the same GPUs; it sleeps while the model is trained unless told otherwise."""
    share = fields.real(f"{_ROLLOUT}.gpu_memory_utilization", default=0.5)
    if not 0 <= share <= 1:
        raise PlanError(f"gpu_memory_utilization must be between 0 and 1, not {share:g}")
    if fields.text(f"{_ROLLOUT}.name") == "hf":
        return recipe
    return replace(
        recipe,
        engine_share=share,
        engine_split=max(1, fields.whole(f"{_ROLLOUT}.tensor_model_parallel_size", default=2)),
        engine_sleeps=fields.flag(f"{_ROLLOUT}.free_cache_engine", default=True),
        engine_alone=_offloads(fields, _ACTOR),
    )


def _beside(recipe: Recipe, fields: Fields, strategy: str) -> float:
    """Bytes of the other models over all ranks; those moved to the host between their turns count nothing."""
    reference = "actor_rollout_ref.ref"
    result = 0.0
    compares = fields.flag(f"{_ACTOR}.use_kl_loss") or fields.flag("algorithm.use_kl_in_reward")
    if compares and recipe.adapter is None and not _offloads(fields, reference):
        result += 2.0 * recipe.model.parameters()
    if fields.text("algorithm.adv_estimator", default="gae") == "gae" and not _offloads(
        fields, "critic", "critic.model"
    ):
        named = fields.text("critic.model.path")
        critic = beside(fields, "critic", named, recipe.model)
        result += _CRITIC_BYTES[strategy] * critic.parameters()
    reward = fields.text("reward_model.model.path")
    if reward and fields.flag("reward_model.enable"):
        result += 2.0 * beside(fields, "reward model", reward, recipe.model).parameters()
    return result


def _offloads(fields: Fields, *sections: str) -> bool:
    kinds = ("fsdp_config", "megatron")
    return any(fields.flag(f"{section}.{kind}.param_offload") for section in sections for kind in kinds)


def _settings(inputs: PlanInputs) -> Mapping[str, Any]:
    return in_verls_words(inputs) if is_easy_r1(inputs.settings) else inputs.settings


def _plan(inputs: PlanInputs) -> TrainingPlan:
    return verl_plan(_settings(inputs), model_config=inputs.model_config(), world_size=inputs.world_size)


def _processes(inputs: PlanInputs) -> int | None:
    settings = _settings(inputs)
    return _gpus(Fields(settings)) if any(name.startswith("actor_rollout_ref") for name in settings) else None


TRAINER = Trainer(
    "verl",
    _plan,
    modules=("verl.trainer",),
    # Programs of others on top of it, in its words: ``python -m recipe.dapo.main_dapo actor_rollout_ref.…``.
    options=lambda names: any(name.lstrip("+").startswith(f"{_MODEL}.path") for name in names),
    processes=_processes,
)
