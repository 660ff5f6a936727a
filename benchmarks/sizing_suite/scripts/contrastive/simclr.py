"""SimCLR: two augmented views of each picture, NT-Xent over the whole batch."""
import argparse
import json
import pathlib
import tempfile

import torch
import torch.nn as nn
import torch.nn.functional as F
import torchvision
from torchvision.transforms import v2 as T


class MetricLog:
    """Lines of JSON in a file, for people who have no experiment tracker."""

    def __init__(self, folder):
        self.path = pathlib.Path(folder) / "metrics.jsonl"

    def log(self, **values):
        with self.path.open("a") as stream:
            stream.write(json.dumps(values) + "\n")
        print(values)


class SimCLR(nn.Module):
    def __init__(self, backbone, dim=128):
        super().__init__()
        self.encoder = getattr(torchvision.models, backbone)(weights=None)
        width = self.encoder.fc.in_features
        self.encoder.fc = nn.Identity()
        self.projector = nn.Sequential(nn.Linear(width, width), nn.ReLU(inplace=True), nn.Linear(width, dim))

    def forward(self, x):
        return F.normalize(self.projector(self.encoder(x)), dim=1)


def nt_xent(z, temperature):
    similarity = z @ z.T / temperature
    similarity.fill_diagonal_(float("-inf"))
    n = z.shape[0] // 2
    target = torch.cat([torch.arange(n, 2 * n), torch.arange(n)]).to(z.device)
    return F.cross_entropy(similarity, target)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--backbone", default="resnet50")
    p.add_argument("--batch-size", type=int, default=128)
    p.add_argument("--size", type=int, default=224)
    p.add_argument("--temperature", type=float, default=0.1)
    p.add_argument("--fp16-precision", action="store_true")
    p.add_argument("--n-steps", type=int, default=4)
    args = p.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    augment = T.Compose([T.RandomResizedCrop(args.size, scale=(0.2, 1.0), antialias=True), T.RandomHorizontalFlip()])
    model = SimCLR(args.backbone).to(device)
    optimizer = torch.optim.SGD(model.parameters(), 0.3 * args.batch_size / 256, momentum=0.9, weight_decay=1e-6)
    scaler = torch.amp.GradScaler(device.type, enabled=args.fp16_precision)
    with tempfile.TemporaryDirectory() as folder:
        log = MetricLog(folder)
        for step in range(args.n_steps):
            pictures = torch.rand(args.batch_size, 3, args.size, args.size)
            views = torch.cat([augment(pictures), augment(pictures)]).to(device)
            with torch.autocast(device.type, torch.float16, enabled=args.fp16_precision):
                z = model(views)
                loss = nt_xent(z.float(), args.temperature)
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            log.log(step=step, loss=loss.item())


if __name__ == "__main__":
    main()
