"""Full sharding of a transformers Llama, FSDP1 or FSDP2. torchrun --nproc_per_node=N fsdp_llama.py"""
import argparse
import functools
import os

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import MixedPrecision, ShardingStrategy
from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaDecoderLayer

SHAPES = {
    "toy": dict(hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, vocab_size=1000),
    "1b": dict(hidden_size=2048, intermediate_size=5632, num_hidden_layers=22, num_attention_heads=32,
               num_key_value_heads=4, vocab_size=32000),
    "3b": dict(hidden_size=3072, intermediate_size=8192, num_hidden_layers=28, num_attention_heads=24,
               num_key_value_heads=8, vocab_size=128256),
}


def shard(model, args):
    device = torch.device("cuda", torch.cuda.current_device())
    if args.api == "fsdp2":
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        model.to(device)
        for layer in model.model.layers:
            fully_shard(layer, mp_policy=policy)
        return fully_shard(model, mp_policy=policy)
    wrap = functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={LlamaDecoderLayer})
    bf16 = MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16, buffer_dtype=torch.bfloat16)
    strategy = ShardingStrategy.FULL_SHARD if args.strategy == "full" else ShardingStrategy.SHARD_GRAD_OP
    return FSDP(model, auto_wrap_policy=wrap, mixed_precision=bf16, sharding_strategy=strategy, device_id=device,
                use_orig_params=True, limit_all_gathers=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--shape", choices=SHAPES, default="1b")
    parser.add_argument("--api", choices=["fsdp1", "fsdp2"], default="fsdp1")
    parser.add_argument("--strategy", choices=["full", "grad-op"], default="full")
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--length", type=int, default=2048)
    parser.add_argument("--recompute", action="store_true")
    parser.add_argument("--steps", type=int, default=4)
    args = parser.parse_args()
    torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)))
    dist.init_process_group(backend="nccl")
    torch.manual_seed(0)
    config = LlamaConfig(max_position_embeddings=args.length, use_cache=False, **SHAPES[args.shape])
    model = LlamaForCausalLM(config)
    if args.recompute:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    model.train()
    sharded = shard(model, args)
    optimizer = torch.optim.AdamW(sharded.parameters(), lr=1e-4)
    for step in range(args.steps):
        ids = torch.randint(config.vocab_size, (args.batch, args.length), device="cuda")
        loss = sharded(input_ids=ids, labels=ids).loss
        loss.backward()
        if args.api == "fsdp1":
            sharded.clip_grad_norm_(1.0)
        else:
            torch.nn.utils.clip_grad_norm_(sharded.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if dist.get_rank() == 0:
            print(f"step {step} loss {loss.item():.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
