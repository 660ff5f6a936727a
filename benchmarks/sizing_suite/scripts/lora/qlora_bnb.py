"""QLoRA by hand: frozen NF4 linear layers of bitsandbytes, low-rank bfloat16 adapters beside them, paged 8-bit AdamW."""
import argparse

import bitsandbytes as bnb
import torch
from torch import nn
from transformers import AutoModelForCausalLM, LlamaConfig


class Adapted(nn.Module):
    def __init__(self, linear: nn.Linear, rank: int, alpha: int):
        super().__init__()
        base = bnb.nn.Linear4bit(linear.in_features, linear.out_features, bias=False, compute_dtype=torch.bfloat16,
                                 compress_statistics=True, quant_type="nf4")
        base.weight = bnb.nn.Params4bit(linear.weight.data, requires_grad=False, compress_statistics=True, quant_type="nf4")
        self.base = base
        self.down = nn.Linear(linear.in_features, rank, bias=False)
        self.up = nn.Linear(rank, linear.out_features, bias=False)
        nn.init.zeros_(self.up.weight)
        self.scale = alpha / rank

    def forward(self, x):
        return self.base(x) + self.up(self.down(x)) * self.scale


def adapt(model, rank):
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    for layer in model.model.layers:
        for block in (layer.self_attn, layer.mlp):
            for name, child in list(block.named_children()):
                if isinstance(child, nn.Linear):
                    setattr(block, name, Adapted(child, rank, 2 * rank))
    return model


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--hidden", type=int, default=4096)
    parser.add_argument("--rank", type=int, default=64)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--length", type=int, default=2048)
    parser.add_argument("--steps", type=int, default=4)
    args = parser.parse_args()
    config = LlamaConfig(hidden_size=args.hidden, intermediate_size=int(args.hidden * 3.5), num_hidden_layers=args.layers,
                         num_attention_heads=args.hidden // 128, num_key_value_heads=8, vocab_size=128256, use_cache=False)
    torch.set_default_dtype(torch.bfloat16)
    model = adapt(AutoModelForCausalLM.from_config(config), args.rank)
    torch.set_default_dtype(torch.float32)
    model.cuda()
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    model.train()
    trainable = [p for p in model.parameters() if p.requires_grad]
    print(f"{sum(p.numel() for p in trainable) / 1e6:.1f} M trainable")
    optimizer = bnb.optim.PagedAdamW8bit(trainable, lr=2e-4)
    for step in range(args.steps):
        ids = torch.randint(config.vocab_size, (args.batch, args.length), device="cuda")
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        nn.utils.clip_grad_norm_(trainable, 0.3)
        optimizer.step()
        optimizer.zero_grad()
        print(step, loss.item())


if __name__ == "__main__":
    main()
