"""Data-parallel training of a ResNet; --zero shards the optimizer's state. torchrun ddp_zero_resnet.py"""
import argparse
import contextlib
import os
from datetime import timedelta

import torch
import torch.distributed as dist
import torchvision
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel


@contextlib.contextmanager
def process_group():
    rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", timeout=timedelta(minutes=5))
    try:
        yield rank, dist.get_world_size()
    finally:
        dist.destroy_process_group()


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("--arch", default="wide_resnet50_2")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--sync-bn", action="store_true")
    parser.add_argument("--zero", action="store_true")
    parser.add_argument("--static-graph", action="store_true")
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--steps", type=int, default=5)
    return parser.parse_args()


def main():
    args = parse()
    with process_group() as (rank, world):
        model = torchvision.models.get_model(args.arch, weights=None).cuda(rank)
        if args.sync_bn:
            model = torch.nn.SyncBatchNorm.convert_sync_batchnorm(model)
        model = DistributedDataParallel(model, device_ids=[rank], static_graph=args.static_graph)
        if args.zero:
            optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=1e-3)
        else:
            optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
        criterion = torch.nn.CrossEntropyLoss()
        for step in range(args.steps):
            for micro in range(args.accumulate):
                x = torch.randn(args.batch // args.accumulate, 3, 224, 224).pin_memory().cuda(rank, non_blocking=True)
                y = torch.randint(1000, (len(x),)).cuda(rank)
                last = micro == args.accumulate - 1
                with contextlib.nullcontext() if last else model.no_sync():
                    loss = criterion(model(x), y) / args.accumulate
                    loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            mean = loss.detach().clone()
            dist.all_reduce(mean)
            if rank == 0:
                print(f"{step}: {mean.item() / world:.4f}")


if __name__ == "__main__":
    main()
