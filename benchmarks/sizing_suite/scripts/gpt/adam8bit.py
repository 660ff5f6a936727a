"""A decoder of nn.TransformerEncoder layers trained with bitsandbytes' 8-bit AdamW."""
import argparse

import bitsandbytes as bnb
import torch
from torch import nn


class Decoder(nn.Module):
    def __init__(self, vocab, dim, heads, layers, context):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.position = nn.Parameter(torch.zeros(context, dim))
        layer = nn.TransformerEncoderLayer(dim, heads, 4 * dim, dropout=0.0, activation="gelu", batch_first=True,
                                           norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(dim, vocab)

    def forward(self, tokens):
        length = tokens.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(length, device=tokens.device)
        x = self.embed(tokens) + self.position[:length]
        return self.head(self.blocks(x, mask=mask, is_causal=True))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--dim", type=int, default=1024)
    ap.add_argument("--layers", type=int, default=24)
    ap.add_argument("--batch", type=int, default=4)
    ap.add_argument("--context", type=int, default=1024)
    ap.add_argument("--paged", action="store_true")
    ap.add_argument("--steps", type=int, default=4)
    a = ap.parse_args()
    model = Decoder(50257, a.dim, a.dim // 64, a.layers, a.context).cuda()
    kind = bnb.optim.PagedAdamW8bit if a.paged else bnb.optim.AdamW8bit
    optimizer = kind(model.parameters(), lr=1e-4, betas=(0.9, 0.95))
    for step in range(a.steps):
        tokens = torch.randint(50257, (a.batch, a.context + 1), device="cuda")
        with torch.autocast("cuda", torch.bfloat16):
            logits = model(tokens[:, :-1])
            loss = nn.functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), tokens[:, 1:].reshape(-1))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print(step, loss.item())


if __name__ == "__main__":
    main()
