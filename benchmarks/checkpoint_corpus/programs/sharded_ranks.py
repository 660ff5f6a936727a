"""Data-parallel training in two processes; each writes a shard with torch.distributed.checkpoint, waiting or not."""

import argparse
import logging
import os
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.nn.parallel import DistributedDataParallel


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", required=True)
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--every", type=int, default=15)
    parser.add_argument("--async-save", action="store_true")
    parser.add_argument("--every-rank", action="store_true", help="each process tells of its own saving")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    # What is written beside the training must not wait among its messages.
    beside = dist.new_group(backend="gloo")
    logging.basicConfig(level=logging.INFO, format=f"[rank{rank}]: %(asctime)s %(levelname)s %(message)s")
    log = logging.getLogger("train")
    speaks = args.every_rank or rank == 0
    model = DistributedDataParallel(torch.nn.Sequential(*[torch.nn.Linear(192, 192) for _ in range(6)]))
    optimizer = torch.optim.AdamW(model.parameters())
    log.info("world size %d, pid %d", dist.get_world_size(), os.getpid())
    under_way = None
    for step in range(1, args.steps + 1):
        x = torch.randn(64, 192)
        loss = (model(x) - x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0:
            log.info("step: %d  loss: %.5f  grad_norm: %.3f", step, loss.item(), 1.0)
        if step % args.every == 0:
            if under_way is not None:
                under_way.result()
                if speaks:
                    log.info("Asynchronous checkpoint of step %d is complete", step - args.every)
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            folder = Path(args.out) / f"step-{step}"
            if speaks:
                log.info("Saving the checkpoint at step %d to %s", step, folder)
            if args.async_save:
                under_way = dcp.async_save(state, checkpoint_id=folder, process_group=beside)
            else:
                dcp.save(state, checkpoint_id=folder)
                if speaks:
                    log.info("Finished saving the checkpoint at step %d", step)
    if under_way is not None:
        under_way.result()
        if speaks:
            log.info("Asynchronous checkpoint of step %d is complete", args.steps)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
