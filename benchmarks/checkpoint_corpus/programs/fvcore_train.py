"""A loop with fvcore's PeriodicCheckpointer, as Detectron2 and its kin have it."""

import argparse
import logging

import torch
from fvcore.common.checkpoint import Checkpointer, PeriodicCheckpointer


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", required=True)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--every", type=int, default=10)
    parser.add_argument("--keep", type=int, default=5)
    parser.add_argument("--resume", action="store_true")
    args = parser.parse_args()
    logging.basicConfig(format="[%(asctime)s %(name)s]: %(message)s", datefmt="%m/%d %H:%M:%S", level=logging.INFO)
    log = logging.getLogger("d2.utils.events")
    net = torch.nn.Sequential(*[torch.nn.Linear(128, 128) for _ in range(3)])
    optimizer = torch.optim.SGD(net.parameters(), 0.02)
    checkpointer = Checkpointer(net, args.out, optimizer=optimizer)
    first = checkpointer.resume_or_load("", resume=args.resume).get("iteration", -1) + 1
    saver = PeriodicCheckpointer(checkpointer, args.every, max_iter=args.steps, max_to_keep=args.keep)
    for step in range(first, args.steps):
        x = torch.randn(16, 128)
        loss = (net(x) - x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 4 == 3:
            log.info(
                f" eta: 0:00:0{9 - 9 * step // args.steps}  iter: {step}  total_loss: {loss.item():.4f}  "
                f"time: 0.0021  data_time: 0.0002  lr: 0.02"
            )
        saver.step(step)


if __name__ == "__main__":
    main()
