"""Pretrain a Llama-style model: RMSNorm, rotary embedding, grouped queries, SwiGLU; weights held in bfloat16 or float32."""
import argparse
import dataclasses
import itertools

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint


@dataclasses.dataclass(frozen=True)
class ModelArgs:
    dim: int = 1024
    n_layers: int = 16
    n_heads: int = 16
    n_kv_heads: int = 4
    vocab_size: int = 32000
    hidden: int = 2816
    norm_eps: float = 1e-5


PRESETS = {
    "160m": ModelArgs(768, 12, 12, 12, hidden=2048),
    "400m": ModelArgs(),
    "1b": ModelArgs(2048, 16, 32, 8, hidden=8192, vocab_size=128256),
    "3b": ModelArgs(3072, 28, 24, 8, hidden=8192, vocab_size=128256),
    "toy": ModelArgs(64, 2, 4, 2, hidden=128, vocab_size=256),
}


class RMSNorm(nn.Module):
    def __init__(self, dim, eps):
        super().__init__()
        self.eps, self.weight = eps, nn.Parameter(torch.ones(dim))

    def forward(self, x):
        y = x.float()
        return (y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + self.eps)).type_as(x) * self.weight


def rotary(x, cos, sin):
    a, b = x.float().chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1).type_as(x)


class TransformerBlock(nn.Module):
    def __init__(self, a: ModelArgs):
        super().__init__()
        self.a, self.head = a, a.dim // a.n_heads
        self.wq = nn.Linear(a.dim, a.n_heads * self.head, bias=False)
        self.wk = nn.Linear(a.dim, a.n_kv_heads * self.head, bias=False)
        self.wv = nn.Linear(a.dim, a.n_kv_heads * self.head, bias=False)
        self.wo = nn.Linear(a.n_heads * self.head, a.dim, bias=False)
        self.w1, self.w3 = nn.Linear(a.dim, a.hidden, bias=False), nn.Linear(a.dim, a.hidden, bias=False)
        self.w2 = nn.Linear(a.hidden, a.dim, bias=False)
        self.attention_norm, self.ffn_norm = RMSNorm(a.dim, a.norm_eps), RMSNorm(a.dim, a.norm_eps)

    def forward(self, x, cos, sin):
        b, t, _ = x.shape
        h = self.attention_norm(x)
        q = rotary(self.wq(h).view(b, t, -1, self.head).transpose(1, 2), cos, sin)
        k = rotary(self.wk(h).view(b, t, -1, self.head).transpose(1, 2), cos, sin)
        v = self.wv(h).view(b, t, -1, self.head).transpose(1, 2)
        repeat = self.a.n_heads // self.a.n_kv_heads
        k, v = k.repeat_interleave(repeat, 1), v.repeat_interleave(repeat, 1)
        o = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, -1)
        x = x + self.wo(o)
        h = self.ffn_norm(x)
        return x + self.w2(F.silu(self.w1(h)) * self.w3(h))


class Llama(nn.Module):
    def __init__(self, a: ModelArgs, recompute: str):
        super().__init__()
        self.a, self.recompute = a, recompute
        self.tok_embeddings = nn.Embedding(a.vocab_size, a.dim)
        self.layers = nn.ModuleList(TransformerBlock(a) for _ in range(a.n_layers))
        self.norm, self.output = RMSNorm(a.dim, a.norm_eps), nn.Linear(a.dim, a.vocab_size, bias=False)

    def forward(self, tokens):
        h = self.tok_embeddings(tokens)
        half = self.a.dim // self.a.n_heads // 2
        freqs = 1.0 / 500000 ** (torch.arange(half, device=h.device) / half)
        angles = torch.outer(torch.arange(tokens.shape[1], device=h.device), freqs)
        cos, sin = angles.cos(), angles.sin()
        for i, layer in enumerate(self.layers):
            if self.recompute == "full" or (self.recompute == "alternate" and i % 2):
                h = checkpoint(layer, h, cos, sin, use_reentrant=False)
            else:
                h = layer(h, cos, sin)
        return self.output(self.norm(h))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("preset", choices=PRESETS)
    parser.add_argument("--seq-len", type=int, default=2048)
    parser.add_argument("--micro-batch", type=int, default=2)
    parser.add_argument("--weights", default="float32", choices=["float32", "bfloat16"])
    parser.add_argument("--recompute", default="none", choices=["none", "alternate", "full"])
    parser.add_argument("--optimizer", default="adamw", choices=["adamw", "adamw-foreach", "adamw-fused", "adafactor"])
    parser.add_argument("--steps", type=int, default=4)
    opts = parser.parse_args()

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.set_default_dtype(getattr(torch, opts.weights))
    with device:
        model = Llama(PRESETS[opts.preset], opts.recompute)
    torch.set_default_dtype(torch.float32)
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters")
    if opts.optimizer == "adafactor":
        optimizer = torch.optim.Adafactor(model.parameters(), lr=1e-3)
    else:
        how = {"adamw": {"foreach": False}, "adamw-foreach": {"foreach": True}, "adamw-fused": {"fused": True}}
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.1, **how[opts.optimizer])
    for step in itertools.islice(itertools.count(1), opts.steps):
        batch = torch.randint(model.a.vocab_size, (opts.micro_batch, opts.seq_len + 1), device=device)
        with torch.autocast(device.type, dtype=torch.bfloat16):
            logits = model(batch[:, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1).float(), batch[:, 1:].flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        print(f"step {step} loss {loss.item():.3f}", flush=True)
