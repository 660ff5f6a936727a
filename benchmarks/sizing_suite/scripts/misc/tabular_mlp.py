"""Click-through on tabular data: categorical embeddings and a wide MLP. One learning rate after the other is tried; a
setting that does not fit is noted and left out."""
import argparse
import itertools

import torch
from torch import nn


def mlp(width, depth, inputs):
    layers = []
    for a, b in itertools.pairwise([inputs] + [width] * depth):
        layers += [nn.Linear(a, b), nn.BatchNorm1d(b), nn.ReLU(), nn.Dropout(0.2)]
    return nn.Sequential(*layers, nn.Linear(width, 1))


class Tabular(nn.Module):
    def __init__(self, cardinalities, numeric, width, depth):
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(n, min(50, n // 2)) for n in cardinalities)
        self.body = mlp(width, depth, numeric + sum(t.embedding_dim for t in self.tables))

    def forward(self, cat, num):
        return self.body(torch.cat([t(cat[:, i]) for i, t in enumerate(self.tables)] + [num], 1)).squeeze(1)


def fit(width, depth, batch, lr, steps, device):
    cardinalities = [1000, 100, 50, 7, 24, 12]
    model = Tabular(cardinalities, 32, width, depth).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, amsgrad=True)
    for _ in range(steps):
        cat = torch.stack([torch.randint(n, (batch,)) for n in cardinalities], 1).to(device)
        num, y = torch.randn(batch, 32).to(device), torch.rand(batch).round().to(device)
        loss = nn.functional.binary_cross_entropy_with_logits(model(cat, num), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--width", type=int, default=4096)
    parser.add_argument("--depth", type=int, default=4)
    parser.add_argument("--batch", type=int, default=16384)
    parser.add_argument("--lr", type=float, nargs="+", default=[1e-3])
    parser.add_argument("--steps", type=int, default=6)
    a = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    results = {}
    for lr in a.lr:
        try:
            results[lr] = fit(a.width, a.depth, a.batch, lr, a.steps, device)
        except RuntimeError as error:
            if "out of memory" not in str(error):
                raise
            print(f"lr {lr}: does not fit")
    if not results:
        raise SystemExit("no setting fitted into the memory")
    print(min(results, key=results.get), results)


if __name__ == "__main__":
    main()
