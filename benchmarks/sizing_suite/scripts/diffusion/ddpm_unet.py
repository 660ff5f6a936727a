"""Denoising diffusion: a U-Net with time embedding and attention learns to predict the noise; EMA of the weights."""
import argparse
import copy
import math

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint


def timestep_embedding(t, dim):
    freqs = torch.exp(-math.log(10000) * torch.arange(dim // 2, device=t.device) / (dim // 2))
    args = t[:, None].float() * freqs[None]
    return torch.cat([args.cos(), args.sin()], dim=-1)


class ResBlock(nn.Module):
    def __init__(self, cin, cout, emb):
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(32, cin), nn.Conv2d(cin, cout, 3, padding=1)
        self.emb = nn.Linear(emb, cout)
        self.norm2, self.conv2 = nn.GroupNorm(32, cout), nn.Conv2d(cout, cout, 3, padding=1)
        self.skip = nn.Conv2d(cin, cout, 1) if cin != cout else nn.Identity()

    def forward(self, x, emb):
        h = self.conv1(F.silu(self.norm1(x))) + self.emb(F.silu(emb))[:, :, None, None]
        return self.skip(x) + self.conv2(F.dropout(F.silu(self.norm2(h)), 0.1, self.training))


class SelfAttention(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.norm = nn.GroupNorm(32, channels)
        self.qkv, self.out = nn.Conv1d(channels, 3 * channels, 1), nn.Conv1d(channels, channels, 1)
        self.heads = channels // 64

    def forward(self, x):
        b, c, h, w = x.shape
        q, k, v = self.qkv(self.norm(x).flatten(2)).reshape(b, 3, self.heads, c // self.heads, h * w).unbind(1)
        y = F.scaled_dot_product_attention(q.mT, k.mT, v.mT).mT
        return x + self.out(y.reshape(b, c, h * w)).reshape(b, c, h, w)


class UNet(nn.Module):
    def __init__(self, ch=128, mult=(1, 2, 2, 4), attention_at=(2,), recompute=False):
        super().__init__()
        self.ch, self.recompute = ch, recompute
        emb = 4 * ch
        self.time = nn.Sequential(nn.Linear(ch, emb), nn.SiLU(), nn.Linear(emb, emb))
        self.inp = nn.Conv2d(3, ch, 3, padding=1)
        self.down, self.up, widths, now = nn.ModuleList(), nn.ModuleList(), [ch], ch
        for level, m in enumerate(mult):
            for _ in range(2):
                self.down.append(nn.ModuleList([ResBlock(now, m * ch, emb),
                                                SelfAttention(m * ch) if level in attention_at else nn.Identity()]))
                now = m * ch
                widths.append(now)
            if level < len(mult) - 1:
                self.down.append(nn.Conv2d(now, now, 3, stride=2, padding=1))
                widths.append(now)
        self.mid = nn.ModuleList([ResBlock(now, now, emb), SelfAttention(now), ResBlock(now, now, emb)])
        for level, m in reversed(list(enumerate(mult))):
            for _ in range(3):
                self.up.append(nn.ModuleList([ResBlock(now + widths.pop(), m * ch, emb),
                                              SelfAttention(m * ch) if level in attention_at else nn.Identity()]))
                now = m * ch
            if level:
                self.up.append(nn.ConvTranspose2d(now, now, 4, 2, 1))
        self.out = nn.Sequential(nn.GroupNorm(32, now), nn.SiLU(), nn.Conv2d(now, 3, 3, padding=1))

    def run(self, block, *inputs):
        return checkpoint(block, *inputs, use_reentrant=False) if self.recompute else block(*inputs)

    def forward(self, x, t):
        emb = self.time(timestep_embedding(t, self.ch))
        h = self.inp(x)
        hs = [h]
        for layer in self.down:
            h = layer(h) if isinstance(layer, nn.Conv2d) else layer[1](self.run(layer[0], h, emb))
            hs.append(h)
        h = self.mid[2](self.mid[1](self.mid[0](h, emb)), emb)
        for layer in self.up:
            if isinstance(layer, nn.ConvTranspose2d):
                h = layer(h)
            else:
                h = layer[1](self.run(layer[0], torch.cat([h, hs.pop()], 1), emb))
        return self.out(h)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--image-size", type=int, default=64)
    ap.add_argument("--channels", type=int, default=128)
    ap.add_argument("--batch-size", type=int, default=32)
    ap.add_argument("--bf16", action="store_true")
    ap.add_argument("--recompute", action="store_true")
    ap.add_argument("--sample-steps", type=int, default=0, help="sample with the averaged weights at the end")
    ap.add_argument("--train-steps", type=int, default=4)
    args = ap.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = UNet(args.channels, recompute=args.recompute).to(device)
    ema = copy.deepcopy(model).eval().requires_grad_(False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    beta = torch.linspace(1e-4, 0.02, 1000, device=device)
    alpha_bar = torch.cumprod(1 - beta, 0)
    shape = (args.batch_size, 3, args.image_size, args.image_size)
    for step in range(args.train_steps):
        x0, noise = torch.rand(shape, device=device) * 2 - 1, torch.randn(shape, device=device)
        t = torch.randint(1000, (args.batch_size,), device=device)
        a = alpha_bar[t][:, None, None, None]
        with torch.autocast(device.type, torch.bfloat16, enabled=args.bf16):
            loss = F.mse_loss(model(a.sqrt() * x0 + (1 - a).sqrt() * noise, t).float(), noise)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        with torch.no_grad():
            for averaged, parameter in zip(ema.parameters(), model.parameters()):
                averaged.lerp_(parameter, 1e-4)
        print(f"step={step} loss={loss.item():.4f}")
    with torch.no_grad():
        x = torch.randn(shape, device=device)
        for i in reversed(range(0, 1000, 1000 // args.sample_steps) if args.sample_steps else []):
            t = torch.full((args.batch_size,), i, device=device)
            x = (x - beta[i] / (1 - alpha_bar[i]).sqrt() * ema(x, t)) / (1 - beta[i]).sqrt()


if __name__ == "__main__":
    main()
