#!/usr/bin/env python
"""Action recognition on clips: 3D ResNets of torchvision, gradients accumulated over small batches."""
from argparse import ArgumentDefaultsHelpFormatter, ArgumentParser

import torch
from torch import nn
from torchvision.models import video
from tqdm import tqdm


def clips(batch, frames, size, classes):
    while True:
        yield torch.rand(batch, 3, frames, size, size), torch.randint(classes, (batch,))


def main(argv=None):
    parser = ArgumentParser(formatter_class=ArgumentDefaultsHelpFormatter)
    parser.add_argument("--model", default="r3d_18", choices=["r3d_18", "mc3_18", "r2plus1d_18"])
    parser.add_argument("--batch", type=int, default=8, help="clips in one forward pass")
    parser.add_argument("--accumulate", type=int, default=2)
    parser.add_argument("--frames", type=int, default=16)
    parser.add_argument("--crop", type=int, default=112)
    parser.add_argument("--classes", type=int, default=400)
    parser.add_argument("--half", action="store_true", help="bfloat16 autocast")
    parser.add_argument("--iterations", type=int, default=4)
    a = parser.parse_args(argv)

    dev = torch.device("cuda:0") if torch.cuda.is_available() else torch.device("cpu")
    net = getattr(video, a.model)(weights=None)
    net.fc = nn.Linear(net.fc.in_features, a.classes)
    net.to(dev).train()
    decay, plain = [], []
    for name, p in net.named_parameters():
        (plain if p.ndim == 1 or name.endswith("bias") else decay).append(p)
    optimizer = torch.optim.SGD([{"params": decay, "weight_decay": 1e-4}, {"params": plain, "weight_decay": 0}],
                                lr=0.01, momentum=0.9)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, a.iterations)
    stream = clips(a.batch, a.frames, a.crop, a.classes)
    bar = tqdm(range(a.iterations), desc=a.model)
    for _ in bar:
        optimizer.zero_grad(set_to_none=True)
        total = 0.0
        for _ in range(a.accumulate):
            x, y = next(stream)
            with torch.autocast(dev.type, torch.bfloat16, enabled=a.half):
                loss = nn.functional.cross_entropy(net(x.to(dev)), y.to(dev)) / a.accumulate
            loss.backward()
            total += loss.detach()
        nn.utils.clip_grad_norm_(net.parameters(), 40)
        optimizer.step()
        schedule.step()
        bar.set_postfix(loss=float(total))


if __name__ == "__main__":
    main()
