"""Decoder with a key-value cache of fixed size, written without a model library; one prefill, then token by token."""
from dataclasses import dataclass
from functools import partial
from os import environ
from sys import argv

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class Shape:
    layers: int
    heads: int
    kv_heads: int
    head: int
    hidden: int
    vocab: int = 32000

    @property
    def width(self):
        return self.heads * self.head


SHAPES = {
    "toy": Shape(2, 4, 2, 16, 128, 500),
    "1b": Shape(22, 32, 4, 64, 5632),
    "7b": Shape(32, 32, 32, 128, 11008),
}
shape = SHAPES[argv[1] if len(argv) > 1 else "1b"]
batch = int(argv[2]) if len(argv) > 2 else 4
context = int(argv[3]) if len(argv) > 3 else 2048
new_tokens = int(argv[4]) if len(argv) > 4 else 32
device = environ.get("DEVICE", "cuda" if torch.cuda.is_available() else "cpu")
dtype = torch.float16 if device.startswith("cuda") else torch.float32


class Layer(nn.Module):
    def __init__(self, s):
        super().__init__()
        linear = partial(nn.Linear, bias=False)
        self.s = s
        self.norm1, self.norm2 = nn.LayerNorm(s.width), nn.LayerNorm(s.width)
        self.qkv, self.o = linear(s.width, (s.heads + 2 * s.kv_heads) * s.head), linear(s.width, s.width)
        self.gate, self.up, self.down = linear(s.width, s.hidden), linear(s.width, s.hidden), linear(s.hidden, s.width)

    def forward(self, x, cache, start):
        b, t, _ = x.shape
        s = self.s
        q, k, v = self.qkv(self.norm1(x)).split([s.heads * s.head, s.kv_heads * s.head, s.kv_heads * s.head], -1)
        q, k, v = (one.view(b, t, -1, s.head).transpose(1, 2) for one in (q, k, v))
        cache[0][:, :, start:start + t] = k
        cache[1][:, :, start:start + t] = v
        k, v = cache[0][:, :, :start + t], cache[1][:, :, :start + t]
        group = s.heads // s.kv_heads
        k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=t > 1)
        x = x + self.o(y.transpose(1, 2).reshape(b, t, -1))
        h = self.norm2(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


torch.set_default_dtype(dtype)
with torch.device(device), torch.inference_mode():
    embed = nn.Embedding(shape.vocab, shape.width)
    layers = nn.ModuleList(Layer(shape) for _ in range(shape.layers))
    head = nn.Linear(shape.width, shape.vocab, bias=False)
    caches = [torch.zeros(2, batch, shape.kv_heads, context, shape.head) for _ in range(shape.layers)]

    def forward(tokens, start):
        x = embed(tokens)
        for layer, cache in zip(layers, caches):
            x = layer(x, cache, start)
        return head(x[:, -1])

    prompt = torch.randint(shape.vocab, (batch, context - new_tokens))
    token = forward(prompt, 0).argmax(-1, keepdim=True)
    for position in range(context - new_tokens, context - 1):
        probabilities = torch.softmax(forward(token, position).float(), -1)
        token = torch.multinomial(probabilities, 1)
    print("last tokens", token.flatten()[:4].tolist())
