"""Text generation with transformers' generate(): key-value cache, sampling or beams."""
import argparse
import statistics
import time

import torch
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig

FAMILIES = {
    "toy": ("llama", dict(hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
                          num_key_value_heads=2, vocab_size=1000)),
    "llama-1b": ("llama", dict(hidden_size=2048, intermediate_size=8192, num_hidden_layers=16, num_attention_heads=32,
                               num_key_value_heads=8, vocab_size=128256, tie_word_embeddings=True)),
    "qwen-7b": ("qwen2", dict(hidden_size=3584, intermediate_size=18944, num_hidden_layers=28, num_attention_heads=28,
                              num_key_value_heads=4, vocab_size=152064)),
    "gpt2-xl": ("gpt2", dict(n_embd=1600, n_layer=48, n_head=25, n_positions=4096)),
}


def load(name, dtype, device):
    kind, shape = FAMILIES[name]
    config = AutoConfig.for_model(kind, **shape)
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(config)
    torch.set_default_dtype(before)
    return model.eval()


@torch.no_grad()
def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", choices=FAMILIES, default="llama-1b")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--new", type=int, default=64)
    parser.add_argument("--beams", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=2)
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = load(args.model, getattr(torch, args.dtype), device)
    generation = GenerationConfig(max_new_tokens=args.new, min_new_tokens=args.new, num_beams=args.beams,
                                  do_sample=args.beams == 1, top_k=50, pad_token_id=0, eos_token_id=1, bos_token_id=2)
    speeds = []
    for _ in range(args.rounds):
        ids = torch.randint(3, model.config.vocab_size, (args.batch, args.prompt), device=device)
        start = time.perf_counter()
        out = model.generate(ids, attention_mask=torch.ones_like(ids), generation_config=generation)
        speeds.append(args.batch * (out.shape[1] - args.prompt) / (time.perf_counter() - start))
        print(f"{tuple(out.shape)}: {speeds[-1]:.1f} tokens/s")
    print(f"median {statistics.median(speeds):.1f} tokens/s")


if __name__ == "__main__":
    main()
