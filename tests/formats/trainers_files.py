"""Configuration files that the trainers' tests name, and a command's plan."""

from collections.abc import Mapping
from typing import Any

from kopt.core.workload.training_plan import TrainingPlan
from kopt.formats.entrypoint import what_runs
from kopt.formats.trainers import read_plan

FILES: dict[str, Mapping[str, Any]] = {
    "neox.yml": {
        "num-layers": 2,
        "hidden-size": 64,
        "num-attention-heads": 4,
        "seq-length": 128,
        "train_micro_batch_size_per_gpu": 1,
    },
    "zero3.json": {
        "bf16": {"enabled": "auto"},
        "train_micro_batch_size_per_gpu": "auto",
        "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}, "reduce_bucket_size": 1e8},
    },
    "axolotl.yml": {
        "base_model": "NousResearch/Llama-2-7b-hf",
        "load_in_4bit": True,
        "adapter": "qlora",
        "lora_r": 32,
        "sequence_len": 4096,
        "lora_target_linear": True,
        "micro_batch_size": 2,
        "gradient_checkpointing": True,
        "optimizer": "paged_adamw_8bit",
    },
    "factory.yaml": {
        "model_name_or_path": "Qwen/Qwen2.5-7B-Instruct",
        "finetuning_type": "full",
        "deepspeed": "zero3.json",
        "cutoff_len": 2048,
        "per_device_train_batch_size": 1,
        "bf16": True,
    },
    "llama3.yaml": {
        "model": {
            "_component_": "torchtune.models.llama3_1.lora_llama3_1_8b",
            "lora_attn_modules": ["q_proj", "v_proj"],
            "lora_rank": 16,
            "apply_lora_to_mlp": True,
        },
        "tokenizer": {"max_seq_len": 8192},
        "batch_size": 2,
        "dtype": "bf16",
        "enable_activation_checkpointing": True,
        "optimizer": {"_component_": "torch.optim.AdamW", "fused": True},
        "loss": {"_component_": "torchtune.modules.loss.CEWithChunkedOutputLoss"},
    },
    "titan.toml": {
        "model": {"name": "llama3", "flavor": "8B"},
        "training": {"local_batch_size": 1, "seq_len": 8192, "compile": True},
        "activation_checkpoint": {"mode": "full"},
        "parallelism": {"tensor_parallel_degree": 2},
    },
    "fsdp.yaml": {
        "distributed_type": "FSDP",
        "mixed_precision": "bf16",
        "fsdp_config": {"fsdp_sharding_strategy": "FULL_SHARD"},
    },
    "own/config.json": {
        "hidden_size": 1024,
        "num_hidden_layers": 4,
        "num_attention_heads": 8,
        "vocab_size": 32000,
        "intermediate_size": 2816,
    },
}


def plan(command: str, **options: Any) -> TrainingPlan:
    return read_plan(what_runs(command, lambda path: None), FILES.get, **options)
