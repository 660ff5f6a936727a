"""Retrieval: two towers, in-batch negatives with a sampled-softmax correction."""
import argparse
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from tqdm import trange


class Batch(NamedTuple):
    user: Tensor
    history: Tensor
    item: Tensor

    def to(self, device):
        return Batch(*(t.to(device) for t in self))


class Tower(nn.Module):
    def __init__(self, rows, dim, hidden):
        super().__init__()
        self.table = nn.Embedding(rows, dim)
        self.mlp = nn.Sequential(nn.LazyLinear(hidden), nn.ReLU(), nn.LayerNorm(hidden), nn.Linear(hidden, dim))

    def forward(self, *features):
        return F.normalize(self.mlp(torch.cat(features, dim=-1)), dim=-1)


class TwoTower(nn.Module):
    def __init__(self, users, items, dim=128, hidden=1024):
        super().__init__()
        self.query, self.candidate = Tower(users, dim, hidden), Tower(items, dim, hidden)

    def forward(self, batch):
        past = self.candidate.table(batch.history).mean(1)
        q = self.query(self.query.table(batch.user), past)
        c = self.candidate(self.candidate.table(batch.item))
        return q, c


def stream(users, items, size, history):
    while True:
        yield Batch(torch.randint(users, (size,)), torch.randint(items, (size, history)), torch.randint(items, (size,)))


if __name__ == "__main__":
    cli = argparse.ArgumentParser()
    cli.add_argument("--users", type=int, default=2_000_000)
    cli.add_argument("--items", type=int, default=500_000)
    cli.add_argument("--dim", type=int, default=128)
    cli.add_argument("--batch-size", type=int, default=8192)
    cli.add_argument("--history", type=int, default=50)
    cli.add_argument("--steps", type=int, default=5)
    cfg = cli.parse_args()
    dev = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    data = stream(cfg.users, cfg.items, cfg.batch_size, cfg.history)
    model = TwoTower(cfg.users, cfg.items, cfg.dim).to(dev)
    model(next(data).to(dev))  # the lazy layers learn their widths
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.05)
    target = torch.arange(cfg.batch_size, device=dev)
    for _ in (bar := trange(cfg.steps)):
        batch = next(data).to(dev)
        query, candidate = model(batch)
        scores = query @ candidate.T / 0.05
        clash = (batch.item[:, None] == batch.item[None]) & ~torch.eye(cfg.batch_size, dtype=torch.bool, device=dev)
        loss = F.cross_entropy(scores.masked_fill(clash, float("-inf")), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        bar.set_description(f"loss {loss.item():.3f}")
