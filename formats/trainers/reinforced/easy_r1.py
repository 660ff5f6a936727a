"""EasyR1 (https://github.com/hiyouga/EasyR1): verl's trainer with settings of its own, here in verl's words."""

from collections.abc import Mapping
from typing import Any

from kopt.core.workload.training_plan import PlanError
from kopt.formats.trainers.fields import Fields
from kopt.formats.trainers.trainer import PlanInputs

_ACTOR, _ROLLOUT, _MODEL = "actor_rollout_ref.actor", "actor_rollout_ref.rollout", "actor_rollout_ref.model"
_DTYPE = f"{_ACTOR}.fsdp_config.model_dtype"
_WORDS = {
    "worker.actor.model.model_path": f"{_MODEL}.path",
    "worker.actor.model.enable_gradient_checkpointing": f"{_MODEL}.enable_gradient_checkpointing",
    "worker.actor.model.lora.rank": f"{_MODEL}.lora_rank",
    "worker.actor.model.lora.target_modules": f"{_MODEL}.target_modules",
    # With dynamic batching it is what as many sequences of full length would have, so the same.
    "worker.actor.micro_batch_size_per_device_for_update": f"{_ACTOR}.ppo_micro_batch_size_per_gpu",
    "worker.actor.ulysses_size": f"{_ACTOR}.ulysses_sequence_parallel_size",
    "worker.actor.padding_free": f"{_MODEL}.use_remove_padding",
    "worker.actor.fsdp.enable_cpu_offload": f"{_ACTOR}.fsdp_config.offload_policy",
    "worker.actor.fsdp.fsdp_size": f"{_ACTOR}.fsdp_config.fsdp_size",
    "worker.actor.fsdp.torch_dtype": _DTYPE,
    "worker.actor.fsdp.enable_full_shard": f"{_ACTOR}.fsdp_config.reshard_after_forward",
    "worker.actor.offload.offload_params": f"{_ACTOR}.fsdp_config.param_offload",
    "worker.rollout.gpu_memory_utilization": f"{_ROLLOUT}.gpu_memory_utilization",
    "worker.rollout.tensor_parallel_size": f"{_ROLLOUT}.tensor_model_parallel_size",
    "worker.critic.model.model_path": "critic.model.path",
    "worker.critic.offload.offload_params": "critic.model.fsdp_config.param_offload",
}
STATE_BYTES = f"{_ACTOR}.optim.bytes_of_each_moment"
"""A word of neither: of the optimizer's two moments, what else it keeps spread over both."""
ADAPTER_DTYPE = f"{_ACTOR}.fsdp_config.dtype_of_the_adapter"
"""A word of neither: what an adapter is held in where that is not the weights' precision."""
_SAME = (
    "data.max_prompt_length",
    "data.max_response_length",
    "algorithm.adv_estimator",
    "trainer.nnodes",
    "trainer.n_gpus_per_node",
)
_DEFAULTS = {
    f"{_ACTOR}.ppo_micro_batch_size_per_gpu": 4,
    f"{_ROLLOUT}.gpu_memory_utilization": 0.6,
    "algorithm.adv_estimator": "gae",
    "trainer.n_gpus_per_node": 8,
}
"""Of ``verl/workers/*/config.py`` and ``verl/trainer/config.py`` (hiyouga/EasyR1 b44b311), unless as verl's."""


def is_easy_r1(settings: Mapping[str, Any]) -> bool:
    """Whether a command of ``verl.trainer`` is in EasyR1's words."""
    return "config" in settings or any(name.startswith("worker.") for name in settings)


def in_verls_words(inputs: PlanInputs) -> dict[str, Any]:
    """The settings of its file and the command, as verl calls them.

    Raises:
        PlanError: a file is named that cannot be read.
    """
    given = Fields(inputs.settings)
    path = given.text("config")
    content = inputs.load(path) if path else {}
    if content is None:
        raise PlanError(f"the configuration {path[:200]} cannot be read; give it beside the command")
    # A dotted name of the command stands for itself before the file's nested one.
    fields = Fields(content, inputs.settings)
    result: dict[str, Any] = dict(_DEFAULTS)
    result |= {theirs: fields.raw(ours) for ours, theirs in _WORDS.items() if fields.has(ours)}
    result |= {name: fields.raw(name) for name in _SAME if fields.has(name)}
    if fields.text("worker.actor.optim.strategy") == "adamw_bf16":
        # AnyPrecisionAdamW (verl/utils/torch_functional.py): 16 bits for each moment and for what its sums lose;
        # weights stay in 32 (verl/workers/fsdp_workers.py).
        result[STATE_BYTES] = 3.0
    if fields.whole("worker.actor.model.lora.rank", default=0):
        # What an adapter leaves frozen is cast to 16 bits, the adapter to what the weights would have been
        # (verl/workers/fsdp_workers.py).
        result[ADAPTER_DTYPE] = result.get(_DTYPE)
        result[_DTYPE] = "bfloat16"
    result[f"{_ACTOR}.use_kl_loss"] = not fields.flag("algorithm.disable_kl")
    result["actor_rollout_ref.ref.fsdp_config.param_offload"] = fields.flag(
        "worker.ref.fsdp.enable_cpu_offload"
    ) or fields.flag("worker.ref.offload.offload_params")
    return result
