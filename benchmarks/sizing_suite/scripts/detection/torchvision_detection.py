"""Train a torchvision detector on made-up boxes of COCO's shape (after the references/detection scripts)."""
import argparse
import random

import torch
import torchvision
from torch.utils.data import DataLoader, Dataset

MODELS = {
    "fasterrcnn": torchvision.models.detection.fasterrcnn_resnet50_fpn,
    "maskrcnn": torchvision.models.detection.maskrcnn_resnet50_fpn,
    "retinanet": torchvision.models.detection.retinanet_resnet50_fpn,
    "fcos": torchvision.models.detection.fcos_resnet50_fpn,
    "ssd": torchvision.models.detection.ssd300_vgg16,
}


class MadeUpBoxes(Dataset):
    def __init__(self, length, size=(480, 640), classes=91, masks=False):
        self.length, self.size, self.classes, self.masks = length, size, classes, masks

    def __len__(self):
        return self.length

    def __getitem__(self, i):
        rng = random.Random(i)
        h, w = self.size
        boxes = []
        for _ in range(8):
            x, y = rng.uniform(0, w * 0.6), rng.uniform(0, h * 0.6)
            boxes.append([x, y, x + rng.uniform(20, w * 0.4), y + rng.uniform(20, h * 0.4)])
        target = {
            "boxes": torch.tensor(boxes),
            "labels": torch.tensor([rng.randrange(1, self.classes) for _ in boxes]),
            "image_id": i,
        }
        if self.masks:
            target["masks"] = torch.zeros(len(boxes), h, w, dtype=torch.uint8)
            for mask, (x0, y0, x1, y1) in zip(target["masks"], boxes):
                mask[int(y0):int(y1), int(x0):int(x1)] = 1
        return torch.rand(3, h, w), target


def collate_fn(batch):
    return tuple(zip(*batch))


def train_one_epoch(model, optimizer, loader, device, scaler):
    model.train()
    warmup = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=0.001, total_iters=1000)
    for i, (images, targets) in enumerate(loader):
        images = [image.to(device) for image in images]
        targets = [{k: v.to(device) if torch.is_tensor(v) else v for k, v in t.items()} for t in targets]
        with torch.autocast(device.type, torch.float16, enabled=scaler.is_enabled()):
            losses = model(images, targets)
            loss = sum(losses.values())
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        warmup.step()
        print(i, {k: round(v.item(), 3) for k, v in losses.items()})


def main(args):
    device = torch.device(args.device)
    model = MODELS[args.model](weights=None, weights_backbone=None, num_classes=91).to(device)
    params = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(params, lr=0.002, momentum=0.9, weight_decay=1e-4)
    data = MadeUpBoxes(args.steps * args.batch_size, masks=args.model == "maskrcnn")
    loader = DataLoader(data, args.batch_size, collate_fn=collate_fn, num_workers=args.workers)
    train_one_epoch(model, optimizer, loader, device, torch.amp.GradScaler(args.device, enabled=args.amp))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", choices=MODELS, default="fasterrcnn")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--amp", action="store_true")
    main(parser.parse_args())
