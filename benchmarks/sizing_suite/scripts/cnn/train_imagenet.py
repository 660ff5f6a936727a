"""Train an image classifier on ImageNet-sized pictures (random ones unless --data is given)."""
import argparse
import time

import torch
import torch.nn as nn
import torchvision
from torch.utils.data import DataLoader, Dataset


class RandomImages(Dataset):
    def __init__(self, length, size, classes):
        self.length, self.size, self.classes = length, size, classes

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        g = torch.Generator().manual_seed(index)
        return torch.randn(3, self.size, self.size, generator=g), index % self.classes


def get_args():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("-a", "--arch", default="resnet50")
    p.add_argument("-b", "--batch-size", type=int, default=64)
    p.add_argument("--image-size", type=int, default=224)
    p.add_argument("--classes", type=int, default=1000)
    p.add_argument("--lr", type=float, default=0.1)
    p.add_argument("--momentum", type=float, default=0.9)
    p.add_argument("--wd", type=float, default=1e-4)
    p.add_argument("--opt", choices=["sgd", "adamw", "rmsprop"], default="sgd")
    p.add_argument("--amp", action="store_true")
    p.add_argument("--channels-last", action="store_true")
    p.add_argument("--workers", type=int, default=2)
    p.add_argument("--steps", type=int, default=6)
    p.add_argument("--print-freq", type=int, default=2)
    return p.parse_args()


def accuracy(output, target):
    return (output.argmax(1) == target).float().mean().item() * 100


def main():
    args = get_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.backends.cudnn.benchmark = False

    model = torchvision.models.__dict__[args.arch](weights=None, num_classes=args.classes).to(device)
    if args.channels_last:
        model = model.to(memory_format=torch.channels_last)
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1).to(device)
    if args.opt == "sgd":
        optimizer = torch.optim.SGD(model.parameters(), args.lr, momentum=args.momentum, weight_decay=args.wd)
    elif args.opt == "rmsprop":
        optimizer = torch.optim.RMSprop(model.parameters(), args.lr / 10, momentum=args.momentum, weight_decay=args.wd)
    else:
        optimizer = torch.optim.AdamW(model.parameters(), args.lr / 100, weight_decay=0.05)
    scaler = torch.amp.GradScaler("cuda", enabled=args.amp)

    dataset = RandomImages(args.batch_size * args.steps, args.image_size, args.classes)
    loader = DataLoader(dataset, args.batch_size, shuffle=True, num_workers=args.workers,
                        pin_memory=device.type == "cuda", drop_last=True)
    model.train()
    end = time.time()
    for i, (images, target) in enumerate(loader):
        images = images.to(device, non_blocking=True)
        target = target.to(device, non_blocking=True)
        if args.channels_last:
            images = images.contiguous(memory_format=torch.channels_last)
        with torch.autocast(device.type, dtype=torch.float16, enabled=args.amp):
            output = model(images)
            if hasattr(output, "logits"):  # Inception, GoogLeNet
                output = output.logits
            loss = criterion(output, target)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        if i % args.print_freq == 0:
            print(f"[{i}/{len(loader)}] loss {loss.item():.4f} acc@1 {accuracy(output, target):.2f} "
                  f"time {time.time() - end:.3f}")
        end = time.time()


if __name__ == "__main__":
    main()
