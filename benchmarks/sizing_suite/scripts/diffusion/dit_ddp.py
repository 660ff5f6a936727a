# Modified from the DiT training loop. Launch: torchrun --nproc_per_node=N dit_ddp.py --model DiT-B/4
import argparse
import logging
import os
from collections import OrderedDict
from copy import deepcopy

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

MODELS = {"DiT-S/4": (384, 12, 6, 4), "DiT-B/4": (768, 12, 12, 4), "DiT-L/2": (1024, 24, 16, 2), "DiT-toy/4": (64, 2, 2, 4)}


def modulate(x, shift, scale):
    return x * (1 + scale.unsqueeze(1)) + shift.unsqueeze(1)


class DiTBlock(nn.Module):
    def __init__(self, hidden, heads):
        super().__init__()
        self.norm1 = nn.LayerNorm(hidden, elementwise_affine=False, eps=1e-6)
        self.attn = nn.MultiheadAttention(hidden, heads, batch_first=True)
        self.norm2 = nn.LayerNorm(hidden, elementwise_affine=False, eps=1e-6)
        self.mlp = nn.Sequential(nn.Linear(hidden, 4 * hidden), nn.GELU(approximate="tanh"), nn.Linear(4 * hidden, hidden))
        self.ada = nn.Sequential(nn.SiLU(), nn.Linear(hidden, 6 * hidden))

    def forward(self, x, c):
        s1, k1, g1, s2, k2, g2 = self.ada(c).chunk(6, dim=1)
        h = modulate(self.norm1(x), s1, k1)
        x = x + g1.unsqueeze(1) * self.attn(h, h, h, need_weights=False)[0]
        return x + g2.unsqueeze(1) * self.mlp(modulate(self.norm2(x), s2, k2))


class DiT(nn.Module):
    def __init__(self, hidden, depth, heads, patch, latent=32, classes=1000):
        super().__init__()
        self.patch = nn.Conv2d(4, hidden, patch, patch)
        self.pos = nn.Parameter(torch.zeros(1, (latent // patch) ** 2, hidden), requires_grad=False)
        self.t = nn.Sequential(nn.Linear(1, hidden), nn.SiLU(), nn.Linear(hidden, hidden))
        self.y = nn.Embedding(classes + 1, hidden)
        self.blocks = nn.ModuleList(DiTBlock(hidden, heads) for _ in range(depth))
        self.final = nn.Linear(hidden, patch * patch * 4)

    def forward(self, x, t, y):
        h = self.patch(x).flatten(2).transpose(1, 2) + self.pos
        c = self.t(t[:, None]) + self.y(y)
        for block in self.blocks:
            h = block(h, c)
        return self.final(h)


class Latents(Dataset):
    def __init__(self, n):
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        return torch.randn(4, 32, 32), i % 1000


@torch.no_grad()
def update_ema(ema, model, decay=0.9999):
    params = OrderedDict(model.named_parameters())
    for name, param in ema.named_parameters():
        param.mul_(decay).add_(params[name].data, alpha=1 - decay)


def main(args):
    assert torch.cuda.is_available(), "Training currently requires at least one GPU."
    dist.init_process_group("nccl")
    rank, local = dist.get_rank(), int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local)
    logging.basicConfig(level=logging.INFO if rank == 0 else logging.WARNING)
    hidden, depth, heads, patch = MODELS[args.model]
    model = DiT(hidden, depth, heads, patch).to(local)
    ema = deepcopy(model).requires_grad_(False)
    model = DDP(model, device_ids=[local], gradient_as_bucket_view=args.bucket_view)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0)
    per_rank = args.global_batch_size // dist.get_world_size()
    data = Latents(args.max_steps * args.global_batch_size)
    sampler = DistributedSampler(data, shuffle=True, seed=args.global_seed)
    loader = DataLoader(data, per_rank, sampler=sampler, num_workers=2, pin_memory=True, drop_last=True)
    update_ema(ema, model.module, decay=0)
    for step, (x, y) in enumerate(loader):
        x, y = x.to(local, non_blocking=True), y.to(local, non_blocking=True)
        t = torch.rand(len(x), device=x.device)
        noise = torch.randn_like(x)
        with torch.autocast("cuda", torch.bfloat16, enabled=args.bf16):
            out = model((1 - t)[:, None, None, None] * x + t[:, None, None, None] * noise, t, y)
        target = nn.functional.unfold(noise - x, patch, stride=patch).transpose(1, 2)
        loss = (out.float() - target).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        update_ema(ema, model.module)
        logging.info(f"(step={step:07d}) Train Loss: {loss.item():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", choices=list(MODELS), default="DiT-B/4")
    parser.add_argument("--global-batch-size", type=int, default=64)
    parser.add_argument("--global-seed", type=int, default=0)
    parser.add_argument("--bf16", action="store_true")
    parser.add_argument("--bucket-view", action="store_true")
    parser.add_argument("--max-steps", type=int, default=5)
    main(parser.parse_args())
