"""Learning from preferences, rewards and teachers: which other models are held, and what the loss sees."""

from typing import Any

import pytest
from formats.trainers_files import plan

from kopt.core.workload.training_plan import TrainingPlan
from kopt.formats.trainers.finetuning import axolotl_plan, llamafactory_plan, swift_plan
from kopt.formats.trainers.transformers import Surroundings, hf_plan

BASE = {
    "model_name_or_path": "Qwen/Qwen2.5-0.5B",
    "per_device_train_batch_size": 2,
    "max_length": 1024,
    "bf16": True,
    "torch_dtype": "bfloat16",
}


def tuned(method: str, **more: Any) -> TrainingPlan:
    return hf_plan({**BASE, "trl_method": method, **more})


def test_a_preference_is_two_sequences_and_a_frozen_copy_judges_them() -> None:
    plain, dpo = hf_plan(BASE), tuned("dpo")
    assert (plain.micro_batch, dpo.micro_batch) == (2, 4)
    assert (plain.beside_bytes, dpo.beside_bytes) == (0.0, 2.0 * dpo.model.parameters())


@pytest.mark.parametrize("settings", [{"precompute_ref_log_probs": True}, {"reference_free": True}, {"lora_r": 8}])
def test_some_settings_do_without_the_copy(settings: dict[str, Any]) -> None:
    assert tuned("dpo", **settings).beside_bytes == 0.0


@pytest.mark.parametrize("method", ["orpo", "simpo", "cpo"])
def test_methods_without_a_reference_hold_no_copy(method: str) -> None:
    found = tuned(method)
    assert (found.micro_batch, found.beside_bytes) == (4, 0.0)


def test_a_reward_model_puts_out_one_number() -> None:
    assert tuned("reward").logit_bytes == 0.0


def test_grpo_scores_completions_and_holds_a_reference_only_where_it_weighs_one() -> None:
    found = tuned("grpo", max_prompt_length=768, max_completion_length=256)
    assert (found.micro_batch, found.sequence, found.target_sequence, found.beside_bytes) == (2, 1024, 256, 0.0)
    assert tuned("grpo", beta=0.04).beside_bytes == 2.0 * found.model.parameters()
    assert any("prompts" in reason.message for reason in tuned("grpo").unknown)


@pytest.mark.parametrize(
    ("settings", "share"),
    [
        ({"use_vllm": True, "vllm_mode": "colocate"}, 0.3),
        ({"use_vllm": True, "vllm_mode": "colocate", "vllm_gpu_memory_utilization": 0.45}, 0.45),
        ({"use_vllm": True, "vllm_mode": "colocate", "vllm_enable_sleep_mode": True}, 0.3),
        ({"use_vllm": True, "vllm_mode": "server"}, 0.0),
        ({"vllm_mode": "colocate"}, 0.0),
    ],
)
def test_an_engine_takes_its_share_only_where_it_runs_in_the_trainer(settings: dict[str, Any], share: float) -> None:
    plan = tuned("grpo", **settings)
    assert plan.engine_share == share
    assert plan.engine_sleeps == settings.get("vllm_enable_sleep_mode", False)


def test_a_named_teacher_is_held_in_16_bits_and_an_unnamed_one_assumed() -> None:
    named, unnamed = tuned("gkd", teacher_model_name_or_path="Qwen/Qwen2.5-7B"), tuned("gkd")
    assert named.beside_bytes == pytest.approx(2 * 7.6e9, rel=0.01)
    assert unnamed.beside_bytes == 2 * unnamed.model.parameters()
    assert any("teacher" in reason.message for reason in unnamed.unknown)


def test_zero_3_shards_the_copy_as_the_model() -> None:
    def copy(stage: int) -> float:
        around = Surroundings(deepspeed={"bf16": {"enabled": True}, "zero_optimization": {"stage": stage}})
        return hf_plan({**BASE, "trl_method": "dpo"}, around=around, world_size=4).beside_bytes

    assert copy(2) == pytest.approx(4 * copy(3))


def test_every_trainer_names_methods_in_its_own_way() -> None:
    model = {
        "model_name_or_path": "gpt2",
        "base_model": "gpt2",
        "model": "gpt2",
        "finetuning_type": "full",
        "train_type": "full",
    }
    found = [
        llamafactory_plan({**model, "stage": "dpo"}),
        axolotl_plan({**model, "rl": "dpo"}),
        swift_plan({**model, "rlhf_type": "dpo"}),
    ]
    assert all(one.beside_bytes > 0 for one in found)
    assert llamafactory_plan({**model, "stage": "sft"}).beside_bytes == 0


@pytest.mark.parametrize(
    ("command", "copies"),
    [
        ("trl dpo --model_name_or_path gpt2 --max_length 512", 1),
        ("trl sft --model_name_or_path gpt2 --max_length 512", 0),
        ("python examples/scripts/dpo.py --model_name_or_path gpt2 --output_dir x --max_length 512", 1),
        ("python examples/scripts/my_adopt.py --model_name_or_path gpt2 --output_dir x --max_length 512", 0),
    ],
)
def test_commands_and_scripts_name_the_method(command: str, copies: int) -> None:
    found = plan(command)
    assert found.beside_bytes == copies * 4 * found.model.parameters()
