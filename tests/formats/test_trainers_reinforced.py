"""OpenRLHF, verl and DeepSpeed-Chat as their own examples call them, after published commands' structure."""

import pytest

from kopt.core.workload.training_plan import PlanError, Sharding, TrainingPlan
from kopt.formats.entrypoint import what_runs
from kopt.formats.trainers import processes_of, read_plan

VERL = (
    "python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo data.max_prompt_length=512 "
    "data.max_response_length=1024 actor_rollout_ref.model.path=Qwen/Qwen2-7B-Instruct "
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4 actor_rollout_ref.rollout.name=vllm "
    "trainer.n_gpus_per_node=8 trainer.nnodes=2"
)
PPO = (
    "python3 -m openrlhf.cli.train_ppo_ray --actor.num_nodes 1 --actor.num_gpus_per_node 8 --ds.zero_stage 3 "
    "--actor.model_name_or_path meta-llama/Llama-3.1-8B --data.max_len 2048 --train.colocate_all "
    "--vllm.num_engines 4 --vllm.gpu_memory_utilization 0.5"
)
CHAT = (
    "deepspeed --num_gpus 8 main.py --actor_model_name_or_path facebook/opt-13b "
    "--critic_model_name_or_path facebook/opt-350m --actor_zero_stage 3 --critic_zero_stage 3"
)


def nothing(_: str) -> None:
    """There are no files."""


def plan_of(command: str) -> TrainingPlan:
    entrypoint = what_runs(command, lambda _: None)
    return read_plan(entrypoint, nothing, world_size=processes_of(entrypoint, nothing))


def test_verls_actor_is_sharded_over_all_its_gpus() -> None:
    plan = plan_of(VERL)
    assert (plan.parallel.world, plan.parallel.sharding) == (16, Sharding.PARAMETERS)
    assert (plan.micro_batch, plan.sequence) == (4, 1536)
    assert (plan.engine_share, plan.engine_sleeps, plan.engine_alone) == (0.5, True, False)


def test_verls_options_change_the_plan() -> None:
    dynamic = plan_of(f"{VERL} actor_rollout_ref.actor.use_dynamic_bsz=True")
    assert (dynamic.micro_batch, dynamic.sequence) == (1, 16384)
    awake = plan_of(f"{VERL} actor_rollout_ref.rollout.free_cache_engine=False")
    assert not awake.engine_sleeps
    assert plan_of(f"{VERL} actor_rollout_ref.actor.fsdp_config.param_offload=True").engine_alone
    assert plan_of(f"{VERL} actor_rollout_ref.model.lora_rank=32").adapter is not None
    compared = plan_of(f"{VERL} actor_rollout_ref.actor.use_kl_loss=True")
    assert compared.beside_bytes == pytest.approx(2 * compared.model.parameters() / 16)
    critic = plan_of(VERL.replace("=grpo", "=gae"))
    assert critic.beside_bytes > 3 * compared.beside_bytes
    with pytest.raises(PlanError, match="between 0 and 1"):
        plan_of(f"{VERL} actor_rollout_ref.rollout.gpu_memory_utilization=60")


def test_verls_megatron_splits_layers_and_experts() -> None:
    own = "actor_rollout_ref.actor.megatron"
    plan = plan_of(
        VERL.replace("Qwen2-7B-Instruct", "Qwen3-30B-A3B")
        + f" {own}.tensor_model_parallel_size=2 {own}.pipeline_model_parallel_size=2 {own}.expert_model_parallel_size=4"
    )
    assert (plan.parallel.tensor, plan.parallel.pipeline, plan.parallel.expert) == (2, 2, 4)
    assert plan.gradient_bytes == 4.0


def test_verls_fine_tuning_has_at_least_the_gpus_that_share_a_sequence() -> None:
    plan = plan_of(
        "torchrun --nproc_per_node=$1 -m verl.trainer.fsdp_sft_trainer model.partial_pretrain=Qwen/Qwen2.5-0.5B "
        "ulysses_sequence_parallel_size=2 data.micro_batch_size_per_gpu=4"
    )
    assert (plan.parallel.world, plan.parallel.context, plan.micro_batch) == (2, 2, 4)


def test_openrlhf_counts_what_lies_on_the_actors_gpus() -> None:
    plan = plan_of(PPO)
    assert (plan.parallel.world, plan.sequence, plan.engine_share) == (8, 2048, 0.5)
    assert plan.beside_bytes == pytest.approx(2 * plan.model.parameters() / 8)
    apart = plan_of(PPO.replace(" --train.colocate_all", ""))
    assert (apart.beside_bytes, apart.engine_share) == (0.0, 0.0)
    with_critic = plan_of(f"{PPO} --reward.model_name_or_path meta-llama/Llama-3.1-8B")
    assert with_critic.beside_bytes > 9 * plan.beside_bytes


def test_openrlhfs_earlier_names_mean_the_same() -> None:
    new = plan_of(
        "deepspeed --num_gpus 8 --module openrlhf.cli.train_dpo --model.model_name_or_path meta-llama/Llama-3.1-8B "
        "--train.micro_batch_size 1 --data.max_len 8192 --ds.zero_stage 3 --model.gradient_checkpointing_enable"
    )
    old = plan_of(
        "deepspeed --num_gpus 8 --module openrlhf.cli.train_dpo --pretrain meta-llama/Llama-3.1-8B "
        "--micro_train_batch_size 1 --max_len 8192 --zero_stage 3 --gradient_checkpointing"
    )
    assert new == old
    assert (new.micro_batch, new.parallel.world) == (2, 8)
    assert new.beside_bytes > 0


def test_deepspeed_chat_holds_four_models() -> None:
    plan = plan_of(CHAT)
    assert plan.parallel.world == 8
    assert plan.beside_bytes > 2 * plan.model.parameters() / 8
    averaged = plan_of(f"{CHAT} --enable_ema")
    assert averaged.beside_bytes == pytest.approx(plan.beside_bytes + 2 * plan.model.parameters() / 8)
    assert plan_of(f"{CHAT} --actor_lora_dim 128").adapter is not None


def test_deepspeed_chats_first_steps_make_their_own_configuration() -> None:
    base = "deepspeed --num_gpus 8 main.py --model_name_or_path facebook/opt-13b --per_device_train_batch_size 4"
    command = f"{base} --output_dir out --max_seq_len 512"
    assert plan_of(f"{command} --zero_stage 3 --deepspeed").parallel.sharding is Sharding.PARAMETERS
    assert plan_of(f"{command} --zero_stage 2 --deepspeed").parallel.sharding is Sharding.GRADIENTS
    assert plan_of(f"{command} --zero_stage 2 --offload --deepspeed").parallel.offload_optimizer
    assert plan_of(f"{command} --lora_dim 128").adapter is not None


def test_a_folder_that_is_not_set_leaves_the_models_name() -> None:
    assert plan_of(VERL.replace("Qwen/Qwen2-7B-Instruct", "$HOME/models/Qwen2-7B-Instruct")) == plan_of(VERL)


def test_a_reward_model_that_nobody_knows_is_as_large_as_the_actor() -> None:
    known = plan_of(f"{VERL} reward_model.enable=True reward_model.model.path=Qwen/Qwen2-7B")
    unknown = plan_of(f"{VERL} reward_model.enable=True reward_model.model.path=someone/Unheard-RM")
    assert unknown.beside_bytes == known.beside_bytes
    assert len(unknown.unknown) == len(known.unknown) + 1
