# ruff: noqa: T201
"""Image classification in the argparse style, with mixed precision, workers and an evaluation after each epoch."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--optimizer", default="adam")
    parser.add_argument("--amp", action="store_true")
    parser.add_argument("--epochs", type=int, default=2)
    args = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    assert device.type == "cuda"
    torch.backends.cudnn.benchmark = True
    model = nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3),
        nn.SiLU(),
        nn.AdaptiveAvgPool2d(4),
        nn.Flatten(),
        nn.Linear(1024, 512),
        nn.ReLU(),
        nn.Linear(512, 10),
    )
    # Made before the model moves: the optimizer must follow its parameters.
    optimizers = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}
    options = {"momentum": 0.9} if args.optimizer == "sgd" else {}
    optimizer = optimizers[args.optimizer](model.parameters(), lr=1e-3, **options)
    model.to(device)
    data = TensorDataset(torch.randn(512, 3, 32, 32), torch.randint(0, 10, (512,)))
    train = DataLoader(data, args.batch_size, shuffle=True, num_workers=4, pin_memory=True, persistent_workers=True)
    scaler = torch.amp.GradScaler("cuda", enabled=args.amp)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.epochs)
    best = 0.0
    for epoch in range(args.epochs):
        model.train()
        total = 0.0
        for images, labels in train:
            images, labels = images.to(device, non_blocking=True), labels.to(device, non_blocking=True)
            with torch.autocast("cuda", enabled=args.amp):
                loss = nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            if not torch.isfinite(loss):
                raise SystemExit("the loss is no number")
            total += loss.item()
            print(f"epoch {epoch} loss {loss:.4f} norm {norm.item():.2f} scale {scaler.get_scale()}")
        schedule.step()
        model.eval()
        right = 0
        with torch.no_grad():
            for images, labels in DataLoader(data, 128):
                predicted = model(images.to(device)).argmax(1).cpu()
                right += (predicted == labels).sum().item()
        best = max(best, right / len(data))
        torch.save({"model": model.state_dict()}, "/nonexistent/best.pt")
    print(f"best {best:.3f}, {torch.cuda.max_memory_allocated() / 2**20:.0f} MiB")


if __name__ == "__main__":
    main()
