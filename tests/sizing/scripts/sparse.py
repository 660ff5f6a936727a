"""Embeddings with sparse gradients, and a graph's adjacency as a sparse matrix."""

import sys

import torch
from torch import nn

ROWS, WIDTH, BATCH, NODES, EDGES = 100_000, 64, 5120, 4096, 50_000

table = nn.Embedding(ROWS, WIDTH, sparse=True).cuda()
optimizer = {
    "sgd": lambda: torch.optim.SGD(table.parameters(), 0.1),
    "adagrad": lambda: torch.optim.Adagrad(table.parameters(), 0.1),
    "adam": lambda: torch.optim.SparseAdam(list(table.parameters())),
}[sys.argv[1]]()

before = torch.cuda.memory_allocated()
places = torch.stack([torch.arange(EDGES) % NODES, torch.arange(EDGES) // NODES])
adjacency = torch.sparse_coo_tensor(places, torch.ones(EDGES), (NODES, NODES)).coalesce().cuda()
assert torch.cuda.memory_allocated() - before == EDGES * (2 * 8 + 4), torch.cuda.memory_allocated() - before
assert adjacency.is_sparse
assert adjacency._nnz() == EDGES

for _ in range(8):
    ids = torch.randint(0, ROWS, (BATCH,)).cuda()
    out = torch.sparse.mm(adjacency, table(ids)[:NODES])
    optimizer.zero_grad()
    out.square().mean().backward()
    assert table.weight.grad.layout is torch.sparse_coo
    optimizer.step()
