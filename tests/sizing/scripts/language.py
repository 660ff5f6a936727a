"""A small GPT: bf16, activation checkpointing, accumulation, fused AdamW, torch.compile."""

import math
import sys

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

WIDTH, HEADS, LAYERS, VOCABULARY, LENGTH, BATCH = 256, 8, 6, 5000, 256, 8


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x):
        b, t, _ = x.shape
        q, k, v = (one.view(b, t, HEADS, -1).transpose(1, 2) for one in self.qkv(self.norm1(x)).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, WIDTH))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    def __init__(self, checkpointing):
        super().__init__()
        self.embed, self.position = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.head.weight = self.embed.weight
        self.checkpointing = checkpointing

    def forward(self, tokens):
        x = self.embed(tokens) + self.position(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.checkpointing else block(x)
        return self.head(x)


torch.manual_seed(1)
model = torch.compile(GPT("checkpoint" in sys.argv).cuda())
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
for step in range(50):
    for _ in range(4):
        tokens = torch.randint(0, VOCABULARY, (BATCH, LENGTH)).cuda()
        with torch.autocast("cuda", dtype=torch.bfloat16):
            logits = model(tokens)
            loss = F.cross_entropy(logits.flatten(0, 1), tokens.flatten()) / 4
        loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    sys.stdout.write(f"{step} perplexity {math.exp(loss.item() * 4):.1f}\n")
