"""A torchrun main: DDP, FSDP or ZeRO by the first argument."""

import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

LAYERS, WIDTH = 8, 1024


def wrapped(how, model, local_rank):
    if how.startswith("ddp"):
        return DistributedDataParallel(model, device_ids=[local_rank], gradient_as_bucket_view=how == "ddp-view")
    if how == "fsdp1":
        from torch.distributed.fsdp import FullyShardedDataParallel
        from torch.distributed.fsdp.wrap import ModuleWrapPolicy

        return FullyShardedDataParallel(model, auto_wrap_policy=ModuleWrapPolicy({nn.Linear}), device_id=local_rank)
    if how == "fsdp2":
        from torch.distributed.fsdp import fully_shard

        for layer in model:
            fully_shard(layer)
        return fully_shard(model)
    return model


def main():
    how = sys.argv[1]
    dist.init_process_group("nccl")
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    model = wrapped(
        how, nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS))).cuda(), local_rank
    )
    if how == "zero":
        from torch.distributed.optim import ZeroRedundancyOptimizer

        optimizer = ZeroRedundancyOptimizer(model.parameters(), optimizer_class=torch.optim.AdamW, lr=1e-4)
    else:
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    data = TensorDataset(torch.randn(64 * 100, WIDTH))
    loader = DataLoader(data, 16, sampler=DistributedSampler(data))
    for epoch in range(3):
        loader.sampler.set_epoch(epoch)
        for (batch,) in loader:
            loss = model(batch.cuda(non_blocking=True)).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            mean = loss.detach().clone()
            dist.all_reduce(mean)
            everywhere = [None] * dist.get_world_size()
            dist.all_gather_object(everywhere, mean.item())
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
