"""Batch inference over pictures; halves the batch when the device has too little memory."""
import argparse
import gc
import sys

import torch
import torchvision
from torch.utils.data import DataLoader
from torchvision.datasets import FakeData
from torchvision.transforms import v2
from tqdm import tqdm


def predict(model, dataset, batch_size, device, half):
    loader = DataLoader(dataset, batch_size=batch_size, num_workers=2, pin_memory=True)
    classes = []
    with torch.inference_mode():
        for images, _ in tqdm(loader, file=sys.stderr):
            images = images.to(device, dtype=torch.half if half else torch.float, non_blocking=True)
            classes.append(model(images).softmax(-1).argmax(-1).cpu())
    return torch.cat(classes)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="resnet152")
    parser.add_argument("--batch-size", type=int, default=512)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--images", type=int, default=1024)
    parser.add_argument("--half", action="store_true")
    args = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    transform = v2.Compose([v2.ToImage(), v2.ToDtype(torch.float32, scale=True),
                            v2.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])])
    dataset = FakeData(args.images, (3, args.size, args.size), 1000, transform)
    model = torchvision.models.get_model(args.model, weights=None).eval().to(device)
    if args.half:
        model.half()
    batch_size = args.batch_size
    while True:
        try:
            found = predict(model, dataset, batch_size, device, args.half)
            break
        except torch.cuda.OutOfMemoryError:
            if batch_size == 1:
                raise
            batch_size //= 2
            print(f"out of memory, trying {batch_size}", file=sys.stderr)
        gc.collect()
        torch.cuda.empty_cache()
    print(f"{len(found)} pictures, batch {batch_size}, {found.unique().numel()} classes seen")


if __name__ == "__main__":
    main()
