import argparse
import logging

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader

# siblings of this file, as a script's folder is on the path
from data import Squares
from models import Detector

logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
log = logging.getLogger("train")


def detection_loss(outputs, targets):
    total = 0
    for out, target in zip(outputs, targets):
        obj = target[..., 0]
        total = total + F.binary_cross_entropy_with_logits(out[..., 0], obj)
        weight = obj.unsqueeze(-1)
        total = total + 5 * (weight * (out[..., 1:5].sigmoid() - target[..., 1:5]).abs()).mean()
        onehot = F.one_hot(target[..., 5].long(), out.shape[-1] - 5).float()
        bce = F.binary_cross_entropy_with_logits(out[..., 5:], onehot, reduction="none")
        total = total + (weight * bce).mean()
    return total


def run(opt):
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = Detector(opt.width).to(device)
    g = [[], [], []]
    for m in model.modules():
        for name, p in m.named_parameters(recurse=False):
            g[2 if name == "bias" else 1 if isinstance(m, torch.nn.BatchNorm2d) else 0].append(p)
    optimizer = torch.optim.SGD(g[2], lr=0.01, momentum=0.937, nesterov=True)
    optimizer.add_param_group({"params": g[0], "weight_decay": 5e-4})
    optimizer.add_param_group({"params": g[1], "weight_decay": 0.0})
    scaler = torch.amp.GradScaler(device, enabled=not opt.no_amp)
    loader = DataLoader(Squares(opt.batch * opt.iters, opt.img), opt.batch, num_workers=2, persistent_workers=True)
    accumulate = max(round(64 / opt.batch), 1)
    for i, (imgs, targets) in enumerate(loader):
        imgs = imgs.to(device, non_blocking=True).float()
        with torch.autocast(device, torch.float16, enabled=not opt.no_amp):
            pred = model(imgs)
            loss = detection_loss(pred, [t.to(device) for t in targets]) * opt.batch
        scaler.scale(loss).backward()
        if (i + 1) % accumulate == 0 or i + 1 == len(loader):
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 10.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        log.info("%d/%d loss %.4f", i, len(loader), float(loss))


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--batch", type=int, default=16)
    ap.add_argument("--img", type=int, default=640)
    ap.add_argument("--width", type=int, default=32)
    ap.add_argument("--iters", type=int, default=8)
    ap.add_argument("--no-amp", action="store_true")
    run(ap.parse_args())
