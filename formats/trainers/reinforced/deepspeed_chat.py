"""DeepSpeed-Chat's third step: an actor and a critic in training, a reference and a reward model beside them.

Its first two steps have the options of transformers' own examples. Source of defaults:
``applications/DeepSpeed-Chat/training/step3_rlhf_finetuning/main.py`` (deepspeedai/DeepSpeedExamples).
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from kopt.core.workload.training_plan import ModelShape, TrainingPlan
from kopt.formats.trainers.fields import Fields
from kopt.formats.trainers.models import beside, model_of
from kopt.formats.trainers.names import adapter
from kopt.formats.trainers.preferences import LOG_PROBABILITIES
from kopt.formats.trainers.recipe import Recipe
from kopt.formats.trainers.trainer import PlanInputs, Trainer

_OPTIONS = {"--actor_model_name_or_path", "--critic_model_name_or_path"}
_HALF, _TRAINED = 2.0, 16.0
"""Bytes per number of a frozen model in 16 bits, and of one in training: weights, gradients, master, Adam's states."""


def deepspeed_chat_plan(
    settings: Mapping[str, Any], *, model_config: Mapping[str, Any] | None = None, world_size: int | None = None
) -> TrainingPlan:
    """The plan of ``deepspeed main.py --actor_model_name_or_path … --critic_model_name_or_path …``.

    Raises:
        PlanError: a model is not known, or a value that cannot be.
    """
    fields = Fields(settings)
    model = model_of(fields, "actor_model_name_or_path", config=model_config)
    gpus = world_size or 1
    offloads = fields.flag("offload")
    prompt = fields.whole("max_prompt_seq_len", default=256)
    recipe = Recipe(
        framework="deepspeed-chat",
        model=model,
        micro_batch=fields.whole("per_device_training_batch_size", "per_device_train_batch_size", default=16),
        sequence=max(1, prompt + fields.whole("max_answer_seq_len", default=256)),
        accumulation=fields.whole("gradient_accumulation_steps", default=1),
        gpus=gpus,
        checkpointing=fields.flag("actor_gradient_checkpointing"),
        loss=LOG_PROBABILITIES,
        beside=_beside(fields, model, gpus, offloads),
        unknown=fields.unknown,
    )
    rank = fields.whole("actor_lora_dim", default=0)
    if rank:
        recipe = replace(recipe, adapter=adapter(model, rank, ["all-linear"], dropout=False))
    stage = fields.whole("actor_zero_stage", default=0)
    return recipe.with_deepspeed(
        stage, offload_optimizer=offloads, offload_parameters=offloads and stage == 3, bucket=5e8
    ).plan()


def _beside(fields: Fields, model: ModelShape, gpus: int, offloads: bool) -> float:
    """Bytes of the other models; those of the critic's stage of ZeRO are spread over the GPUs."""
    critic = beside(fields, "critic", fields.text("critic_model_name_or_path"), model).parameters()
    stage = fields.whole("critic_zero_stage", default=0)
    actors_stage = fields.whole("actor_zero_stage", default=0)
    states = 0.0 if offloads else _TRAINED - _HALF
    # The plan divides what lies beside over the ranks in the actor's third stage only.
    together = gpus if actors_stage == 3 else 1
    trained = states / (gpus if stage else 1) + _HALF / (gpus if stage == 3 else 1)
    frozen = 0.0 if fields.flag("offload_reference_model") else _HALF * model.parameters()
    average = _HALF * model.parameters() if fields.flag("enable_ema") else 0.0
    reward = _HALF * critic
    return frozen + average + reward + trained * critic * together


def _plan(inputs: PlanInputs) -> TrainingPlan:
    return deepspeed_chat_plan(inputs.settings, model_config=inputs.model_config(), world_size=inputs.world_size)


TRAINER = Trainer("deepspeed-chat", _plan, options=lambda names: names >= _OPTIONS)
