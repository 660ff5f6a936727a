"""Full-batch graph convolutions on a random power-law graph; adjacency as a sparse tensor."""
import argparse

import torch
import torch.nn.functional as F
from torch import nn


def random_graph(nodes, edges, seed=0):
    """Symmetric, self loops added, D^-1/2 A D^-1/2 as sparse COO."""
    g = torch.Generator().manual_seed(seed)
    src = torch.randint(nodes, (edges,), generator=g)
    dst = (torch.rand(edges, generator=g).pow(3) * nodes).long()
    loops = torch.arange(nodes)
    row, col = torch.cat([src, dst, loops]), torch.cat([dst, src, loops])
    degree = torch.bincount(row, minlength=nodes).float()
    value = degree[row].rsqrt() * degree[col].rsqrt()
    return torch.sparse_coo_tensor(torch.stack([row, col]), value, (nodes, nodes)).coalesce()


class GraphConvolution(nn.Module):
    def __init__(self, cin, cout):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(cin, cout))
        self.bias = nn.Parameter(torch.zeros(cout))
        nn.init.xavier_uniform_(self.weight)

    def forward(self, x, adj):
        return torch.sparse.mm(adj, x @ self.weight) + self.bias


class GCN(nn.Module):
    def __init__(self, features, hidden, classes, layers, dropout):
        super().__init__()
        widths = [features] + [hidden] * (layers - 1) + [classes]
        self.layers = nn.ModuleList(GraphConvolution(a, b) for a, b in zip(widths, widths[1:]))
        self.norms = nn.ModuleList(nn.BatchNorm1d(w) for w in widths[1:-1])
        self.dropout = dropout

    def forward(self, x, adj):
        for layer, norm in zip(self.layers, self.norms):
            x = F.dropout(F.relu(norm(layer(x, adj))), self.dropout, self.training)
        return self.layers[-1](x, adj)


parser = argparse.ArgumentParser()
parser.add_argument("--nodes", type=int, default=169343)
parser.add_argument("--edges", type=int, default=1166243)
parser.add_argument("--features", type=int, default=128)
parser.add_argument("--hidden", type=int, default=256)
parser.add_argument("--layers", type=int, default=3)
parser.add_argument("--epochs", type=int, default=5)
args = parser.parse_args()

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
adj = random_graph(args.nodes, args.edges).to(device)
x = torch.randn(args.nodes, args.features).to(device)
y = torch.randint(40, (args.nodes,)).to(device)
train_mask = (torch.rand(args.nodes) < 0.5).to(device)
model = GCN(args.features, args.hidden, 40, args.layers, 0.5).to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)
for epoch in range(1, args.epochs + 1):
    model.train()
    optimizer.zero_grad()
    out = model(x, adj)
    loss = F.cross_entropy(out[train_mask], y[train_mask])
    loss.backward()
    optimizer.step()
    model.eval()
    with torch.no_grad():
        accuracy = (model(x, adj).argmax(1) == y)[~train_mask].float().mean()
    print(f"Epoch {epoch:03d} loss {loss:.4f} val {accuracy:.4f}")
