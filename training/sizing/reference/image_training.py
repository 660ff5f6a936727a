"""Trains an image model of timm or torchvision on random images: ``--model resnet50 --batch-size 32``."""

import argparse
from importlib import import_module


def main() -> None:
    """A plain loop, as benchmarks of memory have it."""
    import torch

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--batch-size", type=int, required=True)
    parser.add_argument("--library", choices=("timm", "torchvision"), default="timm")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--search", action="store_true", help="have cuDNN search for the fastest algorithms")
    arguments = parser.parse_args()
    torch.backends.cudnn.benchmark = arguments.search
    if arguments.library == "timm":
        model = import_module("timm").create_model(arguments.model)
        shape = model.default_cfg["input_size"]
    else:
        model, shape = import_module("torchvision.models").get_model(arguments.model), (3, 224, 224)
    model = model.cuda().train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    loss = torch.nn.CrossEntropyLoss()
    for _ in range(arguments.steps):
        images = torch.randn(arguments.batch_size, *shape, device="cuda")
        labels = torch.randint(0, 1000, (arguments.batch_size,), device="cuda")
        optimizer.zero_grad()
        loss(model(images), labels).backward()
        optimizer.step()


if __name__ == "__main__":
    main()
