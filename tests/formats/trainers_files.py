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
    "xtuner.py": {
        "max_length": 2048,
        "pack_to_max_length": True,
        "model": {
            "type": "SupervisedFinetune",
            "llm": {"pretrained_model_name_or_path": "internlm/internlm2-7b", "torch_dtype": "torch.float16"},
            "lora": {"type": "LoraConfig", "r": 64, "lora_dropout": 0.1},
        },
        "train_dataloader": {"batch_size": 2},
        "optim_wrapper": {"type": "AmpOptimWrapper", "dtype": "float16", "optimizer": {"type": "AdamW"}},
    },
    "lingua.yaml": {
        "distributed": {"fsdp_type": "full_shard", "compile": True, "model_dtype": "bf16"},
        "model": {"dim": 2048, "n_layers": 25, "n_heads": 16},
        "data": {
            "batch_size": 4,
            "seq_len": 4096,
            "tokenizer": {"name": "tiktoken", "path": "tokenizers/cl_toplang_128k.tiktoken"},
        },
        "optim": {"lr": 3e-3},
    },
    "nanotron.yaml": {
        "model": {
            "dtype": "bfloat16",
            "model_config": {
                "hidden_size": 2048,
                "num_hidden_layers": 24,
                "num_attention_heads": 16,
                "num_key_value_heads": 16,
                "intermediate_size": 8192,
                "vocab_size": 50304,
                "is_llama_config": True,
            },
        },
        "parallelism": {"dp": 2, "tp": 2, "pp": 1, "tp_mode": "REDUCE_SCATTER"},
        "optimizer": {"zero_stage": 1, "accumulate_grad_in_fp32": True},
        "tokens": {"micro_batch_size": 4, "sequence_length": 2048, "batch_accumulation_per_replica": 2},
    },
    "olmo.yaml": {
        "model": {
            "d_model": 2048,
            "n_heads": 16,
            "n_layers": 16,
            "mlp_ratio": 8,
            "weight_tying": False,
            "embedding_size": 100352,
            "max_sequence_length": 4096,
            "activation_type": "swiglu",
            "flash_attention": True,
        },
        "device_train_microbatch_size": 4,
        "global_train_batch_size": 512,
        "precision": "amp_bf16",
        "fsdp": {"sharding_strategy": "SHARD_GRAD_OP", "precision": "mixed"},
    },
    "foundry.yaml": {
        "variables": {"max_seq_len": 2048},
        "max_seq_len": "${variables.max_seq_len}",
        "max_duration": "1ep",
        "model": {"name": "mpt_causal_lm", "d_model": 2048, "n_heads": 16, "n_layers": 24, "vocab_size": 50368},
        "train_loader": {"name": "text"},
        "device_train_microbatch_size": 8,
        "global_train_batch_size": 256,
        "precision": "amp_bf16",
        "fsdp_config": {"sharding_strategy": "FULL_SHARD", "activation_checkpointing": True},
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
