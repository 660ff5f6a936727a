"""A loop with timm's CheckpointSaver and logger, as its training script has it."""

import argparse
import logging

import torch
from timm.utils import AverageMeter, CheckpointSaver, setup_default_logging


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", required=True)
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--recovery", type=int, default=0)
    args = parser.parse_args()
    setup_default_logging()
    log = logging.getLogger("train")
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10))
    optimizer = torch.optim.SGD(net.parameters(), 0.05)
    saver = CheckpointSaver(net, optimizer, checkpoint_dir=args.out, recovery_dir=args.out, max_history=3)
    log.info(f"Model {type(net).__name__} created, param count:{sum(p.numel() for p in net.parameters())}")
    log.info(f"Scheduled epochs: {args.epochs}. LR stepped per epoch.")
    for epoch in range(args.epochs):
        losses = AverageMeter()
        for step in range(40):
            x = torch.randn(32, 64)
            loss = torch.nn.functional.cross_entropy(net(x), x[:, :10].argmax(1))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.update(loss.item(), 32)
            if step % 10 == 0:
                log.info(
                    f"Train: {epoch} [{step:>4d}/40 ({100 * step / 39:>3.0f}%)]  Loss: {losses.val:#.3g} "
                    f"({losses.avg:#.3g})  Time: 0.002s, 16000.00/s  LR: 5.000e-02  Data: 0.000"
                )
            if args.recovery and step and step % args.recovery == 0:
                saver.save_recovery(epoch, batch_idx=step)
        x = torch.randn(512, 64)
        right = 100 * (net(x).argmax(1) == x[:, :10].argmax(1)).float().mean().item()
        log.info(
            f"Test: [   1/1]  Time: 0.004 (0.004)  Loss:  {losses.avg:>6.3f}  Acc@1: {right:>7.3f} ({right:>7.3f})"
        )
        best, best_epoch = saver.save_checkpoint(epoch, metric=right)
    log.info(f"*** Best metric: {best} (epoch {best_epoch})")


if __name__ == "__main__":
    main()
