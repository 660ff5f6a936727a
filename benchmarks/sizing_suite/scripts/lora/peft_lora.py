"""LoRA fine-tuning of a decoder with PEFT."""
import argparse
import os

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import torch
from peft import LoraConfig, TaskType, get_peft_model
from transformers import AutoConfig, AutoModelForCausalLM

SHAPES = {
    "tiny": dict(hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
                 num_key_value_heads=2, vocab_size=1000),
    "0.5b": dict(hidden_size=896, intermediate_size=4864, num_hidden_layers=24, num_attention_heads=14,
                 num_key_value_heads=2, vocab_size=151936, tie_word_embeddings=True),
    "3b": dict(hidden_size=3072, intermediate_size=8192, num_hidden_layers=28, num_attention_heads=24,
               num_key_value_heads=8, vocab_size=128256, tie_word_embeddings=True),
    "8b": dict(hidden_size=4096, intermediate_size=14336, num_hidden_layers=32, num_attention_heads=32,
               num_key_value_heads=8, vocab_size=128256),
}


def build(args):
    kind = "qwen2" if args.shape == "0.5b" else "llama"
    config = AutoConfig.for_model(kind, max_position_embeddings=args.cutoff, use_cache=False, **SHAPES[args.shape])
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
            model = AutoModelForCausalLM.from_config(config, attn_implementation=args.attention)
    finally:
        torch.set_default_dtype(default)
    if args.gradient_checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        model.enable_input_require_grads()
    targets = ["q_proj", "v_proj"] if args.targets == "qv" else "all-linear"
    lora = LoraConfig(task_type=TaskType.CAUSAL_LM, r=args.rank, lora_alpha=2 * args.rank, lora_dropout=0.05,
                      target_modules=targets)
    return get_peft_model(model, lora)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--shape", choices=SHAPES, default="0.5b")
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--targets", choices=["qv", "all"], default="qv")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--cutoff", type=int, default=1024)
    parser.add_argument("--attention", default="sdpa", choices=["sdpa", "eager"])
    parser.add_argument("--gradient-checkpointing", action="store_true")
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--steps", type=int, default=4)
    args = parser.parse_args()

    model = build(args)
    model.print_trainable_parameters()
    model.train()
    device = next(model.parameters()).device
    vocab = model.config.vocab_size
    optimizer = torch.optim.AdamW((p for p in model.parameters() if p.requires_grad), lr=2e-4)
    for step in range(args.steps):
        for _ in range(args.accumulate):
            ids = torch.randint(vocab, (args.batch, args.cutoff), device=device)
            labels = ids.clone()
            labels[:, : args.cutoff // 4] = -100  # the prompt is not learned
            loss = model(input_ids=ids, attention_mask=torch.ones_like(ids), labels=labels).loss / args.accumulate
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print({"step": step, "loss": round(loss.item() * args.accumulate, 4)})


if __name__ == "__main__":
    main()
