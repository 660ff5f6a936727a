"""Semantic segmentation, configured by YAML: `deeplab.py deeplab.yaml train.precision=bfloat16 data.batch=4`."""
import pathlib
import sys
from types import SimpleNamespace

import torch
import torchvision
import yaml


def load_config(argv):
    here = pathlib.Path(__file__).resolve().parent
    path = pathlib.Path(argv[0]) if argv and argv[0].endswith((".yaml", ".yml")) else here / "deeplab.yaml"
    path = path if path.exists() else here / path.name
    with path.open() as stream:
        config = yaml.safe_load(stream)
    for override in argv:
        if "=" not in override:
            continue
        dotted, value = override.split("=", 1)
        section, key = dotted.split(".")
        config[section][key] = yaml.safe_load(value)
    return SimpleNamespace(**{name: SimpleNamespace(**section) for name, section in config.items()})


def poly(iteration, limit, power=0.9):
    return (1 - min(iteration, limit - 1) / limit) ** power


def main():
    cfg = load_config(sys.argv[1:])
    device = torch.device("cuda") if torch.cuda.is_available() else torch.device("cpu")
    build = getattr(torchvision.models.segmentation, cfg.model.name)
    aux = {"aux_loss": cfg.model.aux} if "lraspp" not in cfg.model.name else {}
    model = build(weights=None, weights_backbone=None, num_classes=cfg.model.classes, **aux).to(device)
    groups = [{"params": model.backbone.parameters()}, {"params": model.classifier.parameters(), "lr": cfg.optimizer.lr * 10}]
    if getattr(model, "aux_classifier", None) is not None:
        groups.append({"params": model.aux_classifier.parameters(), "lr": cfg.optimizer.lr * 10})
    optimizer = torch.optim.SGD(groups, lr=cfg.optimizer.lr, momentum=cfg.optimizer.momentum,
                                weight_decay=cfg.optimizer.weight_decay)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda i: poly(i, cfg.train.iterations))
    criterion = torch.nn.CrossEntropyLoss(ignore_index=255)
    dtype = getattr(torch, cfg.train.precision)
    amp = dtype is not torch.float32

    model.train()
    for iteration in range(cfg.train.iterations):
        for micro in range(cfg.train.accumulate):
            image = torch.randn(cfg.data.batch, 3, cfg.data.crop, cfg.data.crop).to(device)
            label = torch.randint(0, cfg.model.classes, (cfg.data.batch, cfg.data.crop, cfg.data.crop)).to(device)
            label[:, :4] = 255
            with torch.autocast(device.type, dtype=dtype if amp else torch.bfloat16, enabled=amp):
                out = model(image)
                loss = criterion(out["out"], label)
                if "aux" in out:
                    loss = loss + 0.4 * criterion(out["aux"], label)
            (loss / cfg.train.accumulate).backward()
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        print(f"iter {iteration + 1}/{cfg.train.iterations} loss {loss.item():.4f} lr {schedule.get_last_lr()[0]:.5f}")


if __name__ == "__main__":
    main()
