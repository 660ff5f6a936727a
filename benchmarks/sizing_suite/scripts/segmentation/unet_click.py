"""U-Net on synthetic medical slices."""
import click
import torch
from torch import nn


def double_conv(cin, cout):
    return nn.Sequential(
        nn.Conv2d(cin, cout, 3, padding=1), nn.BatchNorm2d(cout), nn.ReLU(inplace=True),
        nn.Conv2d(cout, cout, 3, padding=1), nn.BatchNorm2d(cout), nn.ReLU(inplace=True),
    )


class UNet(nn.Module):
    def __init__(self, channels, classes, base=64, depth=4):
        super().__init__()
        widths = [base * 2**i for i in range(depth + 1)]
        self.first = double_conv(channels, base)
        self.down = nn.ModuleList(double_conv(a, b) for a, b in zip(widths, widths[1:]))
        self.up = nn.ModuleList(nn.ConvTranspose2d(b, a, 2, 2) for a, b in reversed(list(zip(widths, widths[1:]))))
        self.merge = nn.ModuleList(double_conv(2 * a, a) for a in reversed(widths[:-1]))
        self.last = nn.Conv2d(base, classes, 1)

    def forward(self, x):
        skips = [self.first(x)]
        for layer in self.down:
            skips.append(layer(nn.functional.max_pool2d(skips[-1], 2)))
        x = skips.pop()
        for up, merge in zip(self.up, self.merge):
            x = merge(torch.cat([skips.pop(), up(x)], dim=1))
        return self.last(x)


def dice_loss(logits, target):
    p = logits.softmax(1)
    t = nn.functional.one_hot(target, logits.shape[1]).permute(0, 3, 1, 2).float()
    inter = (p * t).sum((0, 2, 3))
    return 1 - (2 * inter / (p.sum((0, 2, 3)) + t.sum((0, 2, 3)) + 1e-6)).mean()


@click.command()
@click.option("--batch-size", "-b", default=4, show_default=True)
@click.option("--size", default=512, help="height and width of a slice")
@click.option("--base", default=64)
@click.option("--classes", default=4)
@click.option("--amp/--no-amp", default=True)
@click.option("--lr", default=1e-5, type=float)
@click.option("--steps", default=5)
@click.option("--validate/--no-validate", default=True)
def train(batch_size, size, base, classes, amp, lr, steps, validate):
    device = "cuda" if torch.cuda.is_available() else "cpu"
    net = UNet(1, classes, base).to(device=device, memory_format=torch.channels_last)
    optimizer = torch.optim.RMSprop(net.parameters(), lr=lr, weight_decay=1e-8, momentum=0.999, foreach=True)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, "max", patience=5)
    scaler = torch.amp.GradScaler(device, enabled=amp)
    for step in range(steps):
        net.train()
        x = torch.rand(batch_size, 1, size, size).to(device, memory_format=torch.channels_last)
        y = torch.randint(classes, (batch_size, size, size), device=device)
        with torch.autocast(device, torch.float16, enabled=amp):
            logits = net(x)
            loss = nn.functional.cross_entropy(logits, y) + dice_loss(logits.float(), y)
        optimizer.zero_grad(set_to_none=True)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        click.echo(f"step {step}: {loss.item():.4f}")
    if validate:
        net.eval()
        with torch.inference_mode():
            score = 1 - dice_loss(net(x).float(), y).item()
        plateau.step(score)
        click.secho(f"dice {score:.3f}", fg="green")


if __name__ == "__main__":
    train()
