"""Low-rank adapters in a timm vision transformer, without any adapter library."""
import math
from argparse import ArgumentParser, Namespace

import timm
import torch
import torch.nn as nn


class LoRALinear(nn.Module):
    """W x + (alpha / r) B A x, W frozen."""

    def __init__(self, base: nn.Linear, r: int, alpha: float) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.A = nn.Parameter(torch.empty(r, base.in_features))
        self.B = nn.Parameter(torch.zeros(base.out_features, r))
        nn.init.kaiming_uniform_(self.A, a=math.sqrt(5))
        self.scaling = alpha / r

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base(x) + (x @ self.A.T @ self.B.T) * self.scaling


def inject(model: nn.Module, r: int) -> int:
    model.requires_grad_(False)
    count = 0
    for block in model.blocks:
        block.attn.qkv = LoRALinear(block.attn.qkv, r, 2.0 * r)
        block.attn.proj = LoRALinear(block.attn.proj, r, 2.0 * r)
        count += 2
    model.head.requires_grad_(True)
    return count


def main(args: Namespace) -> None:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = timm.create_model(args.model, num_classes=args.classes)
    print(inject(model, args.rank), "layers adapted")
    model.to(device)
    size = model.patch_embed.img_size
    trainable = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.NAdam(trainable, lr=5e-4)
    scaler = torch.amp.GradScaler(device.type, enabled=args.fp16)
    best = float("inf")
    for step in range(args.steps):
        x = torch.randn(args.batch, 3, *size, device=device)
        y = torch.randint(args.classes, (args.batch,), device=device)
        optimizer.zero_grad()
        with torch.autocast(device.type, torch.float16, enabled=args.fp16):
            loss = nn.functional.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        best = min(best, loss.item())
    print(f"best loss {best:.4f}")


if __name__ == "__main__":
    cli = ArgumentParser()
    cli.add_argument("--model", default="vit_base_patch16_224")
    cli.add_argument("--classes", type=int, default=37)
    cli.add_argument("--rank", type=int, default=8)
    cli.add_argument("--batch", type=int, default=64)
    cli.add_argument("--fp16", action="store_true")
    cli.add_argument("--steps", type=int, default=6)
    main(cli.parse_args())
