"""Deep learning recommendation model: bottom MLP, embedding bags, pairwise interactions, top MLP."""
import argparse
import sys

import numpy as np
import torch
import torch.nn as nn


def dash_separated_ints(value):
    return [int(v) for v in value.split("-")]


class DLRM_Net(nn.Module):
    def create_mlp(self, ln, sigmoid_layer):
        layers = nn.ModuleList()
        for i in range(len(ln) - 1):
            n, m = ln[i], ln[i + 1]
            LL = nn.Linear(n, m)
            LL.weight.data = torch.tensor(np.random.normal(0, np.sqrt(2 / (m + n)), (m, n)).astype(np.float32))
            layers.append(LL)
            layers.append(nn.Sigmoid() if i == sigmoid_layer else nn.ReLU())
        return nn.Sequential(*layers)

    def __init__(self, m_spa, ln_emb, ln_bot, ln_top, sparse):
        super().__init__()
        self.emb_l = nn.ModuleList(nn.EmbeddingBag(n, m_spa, mode="sum", sparse=sparse) for n in ln_emb)
        self.bot_l = self.create_mlp(ln_bot, -1)
        self.top_l = self.create_mlp(ln_top, len(ln_top) - 2)

    def interact_features(self, x, ly):
        batch_size, d = x.shape
        T = torch.cat([x] + ly, dim=1).view((batch_size, -1, d))
        Z = torch.bmm(T, torch.transpose(T, 1, 2))
        li, lj = torch.tril_indices(Z.shape[1], Z.shape[2], offset=-1, device=x.device)
        return torch.cat([x, Z[:, li, lj]], dim=1)

    def forward(self, dense_x, lS_o, lS_i):
        x = self.bot_l(dense_x)
        ly = [E(i, o) for E, i, o in zip(self.emb_l, lS_i, lS_o)]
        return self.top_l(self.interact_features(x, ly))


def run():
    parser = argparse.ArgumentParser(description="Train Deep Learning Recommendation Model (DLRM)")
    parser.add_argument("--arch-sparse-feature-size", type=int, default=64)
    parser.add_argument("--arch-embedding-size", type=dash_separated_ints, default=[1000000] * 8)
    parser.add_argument("--arch-mlp-bot", type=dash_separated_ints, default=[13, 512, 256, 64])
    parser.add_argument("--arch-mlp-top", type=dash_separated_ints, default=[512, 256, 1], help="without its input")
    parser.add_argument("--num-indices-per-lookup", type=int, default=10)
    parser.add_argument("--mini-batch-size", type=int, default=2048)
    parser.add_argument("--optimizer", choices=["sgd", "adagrad", "sparse-adam"], default="sgd")
    parser.add_argument("--dense-grad", action="store_true")
    parser.add_argument("--num-batches", type=int, default=6)
    parser.add_argument("--use-gpu", action="store_true")
    args = parser.parse_args()
    device = torch.device("cuda", 0) if args.use_gpu else torch.device("cpu")
    tables = len(args.arch_embedding_size)
    if args.arch_mlp_bot[-1] != args.arch_sparse_feature_size:
        sys.exit("ERROR: arch-sparse-feature-size does not match last dim of bottom mlp")
    num_fea = tables + 1
    ln_top = [args.arch_mlp_bot[-1] + num_fea * (num_fea - 1) // 2] + args.arch_mlp_top
    dlrm = DLRM_Net(args.arch_sparse_feature_size, args.arch_embedding_size, args.arch_mlp_bot, ln_top,
                    not args.dense_grad).to(device)
    dense = [*dlrm.bot_l.parameters(), *dlrm.top_l.parameters()]
    if args.optimizer == "sgd":
        optimizers = [torch.optim.SGD(dlrm.parameters(), lr=0.1)]
    elif args.optimizer == "adagrad":
        optimizers = [torch.optim.Adagrad(dlrm.parameters(), lr=0.01)]
    else:
        optimizers = [torch.optim.SparseAdam(list(dlrm.emb_l.parameters())), torch.optim.Adam(dense)]
    loss_fn = nn.BCELoss()
    per_table = args.mini_batch_size * args.num_indices_per_lookup
    for j in range(args.num_batches):
        X = torch.rand(args.mini_batch_size, args.arch_mlp_bot[0]).to(device)
        offsets = torch.arange(0, per_table, args.num_indices_per_lookup).to(device)
        lS_i = [torch.randint(n, (per_table,)).to(device) for n in args.arch_embedding_size]
        T = torch.rand(args.mini_batch_size, 1).round().to(device)
        E = loss_fn(dlrm(X, [offsets] * tables, lS_i), T)
        for optimizer in optimizers:
            optimizer.zero_grad()
        E.backward()
        for optimizer in optimizers:
            optimizer.step()
        print("Finished training it {}/{} loss {:.6f}".format(j + 1, args.num_batches, E.item()))


if __name__ == "__main__":
    run()
