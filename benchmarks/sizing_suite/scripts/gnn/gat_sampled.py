"""Graph attention on sampled neighbourhoods: a fixed fan-out per layer, messages gathered and scattered by index."""
import argparse

import torch
from torch import nn
from torch.nn import functional as F


class GATLayer(nn.Module):
    def __init__(self, cin, cout, heads):
        super().__init__()
        self.heads, self.width = heads, cout // heads
        self.lin = nn.Linear(cin, cout, bias=False)
        self.att = nn.Parameter(torch.randn(2, heads, self.width) * 0.1)
        self.skip = nn.Linear(cin, cout)

    def forward(self, x, src, dst, targets):
        h = self.lin(x).view(-1, self.heads, self.width)
        a_src, a_dst = (h * self.att[0]).sum(-1), (h * self.att[1]).sum(-1)
        score = F.leaky_relu(a_src.index_select(0, src) + a_dst.index_select(0, dst), 0.2)
        top = torch.full((targets, self.heads), -1e9, device=x.device, dtype=score.dtype)
        top = top.scatter_reduce(0, dst[:, None].expand_as(score), score, "amax")
        weight = (score - top.index_select(0, dst)).exp()
        norm = torch.zeros_like(top).index_add_(0, dst, weight)
        message = h.index_select(0, src) * (weight / norm.index_select(0, dst)).unsqueeze(-1)
        out = torch.zeros(targets, self.heads, self.width, device=x.device, dtype=message.dtype)
        out.index_add_(0, dst, message)
        return F.elu(out.flatten(1) + self.skip(x[:targets]))


def sample(seeds, fanouts):
    """Blocks from the outermost to the seeds (source index, target index, number of targets), and the number of nodes."""
    blocks, size = [], seeds
    for fanout in fanouts:
        dst = torch.arange(size).repeat_interleave(fanout)
        sources = size + size * fanout
        blocks.insert(0, (torch.arange(size, sources), dst, size))
        size = sources
    return blocks, size


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--seeds", type=int, default=1024, help="target nodes of a mini-batch")
    p.add_argument("--fanout", default="15,10,5")
    p.add_argument("--features", type=int, default=100)
    p.add_argument("--hidden", type=int, default=256)
    p.add_argument("--heads", type=int, default=4)
    p.add_argument("--max-batches", type=int, default=5)
    a = p.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    fanouts = [int(n) for n in a.fanout.split(",")]
    widths = [a.features] + [a.hidden] * len(fanouts)
    layers = nn.ModuleList(GATLayer(i, o, a.heads) for i, o in zip(widths, widths[1:]))
    head = nn.Linear(a.hidden, 47)
    model = nn.ModuleDict({"layers": layers, "head": head}).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for step in range(a.max_batches):
        blocks, nodes = sample(a.seeds, fanouts)
        x = torch.randn(nodes, a.features).to(device)
        labels = torch.randint(47, (a.seeds,)).to(device)
        for layer, (src, dst, targets) in zip(layers, blocks):
            x = layer(x, src.to(device), dst.to(device), targets)
        loss = F.cross_entropy(head(x), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"batch {step}: {nodes} nodes, loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
