# %% [markdown]
# # A radiance field of a made-up scene
# Exported from a notebook; cells can be run one by one.

# %%
import sys

import torch
from torch import nn

IN_NOTEBOOK = "ipykernel" in sys.modules
numbers = [] if IN_NOTEBOOK else [int(v) for v in sys.argv[1:]]
rays, samples, steps = numbers + [4096, 128, 6][len(numbers):]

# %%
dev = "cuda" if torch.cuda.is_available() else "cpu"


def encode(x, bands):
    freqs = 2.0 ** torch.arange(bands, device=x.device)
    y = (x[..., None, :] * freqs[:, None]).flatten(-2)
    return torch.cat([x, y.sin(), y.cos()], -1)


def dense(cin, cout):
    return nn.Linear(cin, cout), nn.ReLU()


class Field(nn.Module):
    def __init__(self, width=256):
        super().__init__()
        pos, view = 3 + 3 * 2 * 10, 3 + 3 * 2 * 4
        self.first = nn.Sequential(*dense(pos, width), *dense(width, width), *dense(width, width), *dense(width, width))
        self.second = nn.Sequential(*dense(width + pos, width), *dense(width, width), *dense(width, width))
        self.sigma = nn.Linear(width, 1)
        self.rgb = nn.Sequential(nn.Linear(width + view, width // 2), nn.ReLU(), nn.Linear(width // 2, 3), nn.Sigmoid())

    def forward(self, x, d):
        p = encode(x, 10)
        h = self.second(torch.cat([self.first(p), p], -1))
        return self.rgb(torch.cat([h, encode(d, 4).expand(*h.shape[:-1], -1)], -1)), self.sigma(h).relu()


# %%
def render(field, origin, direction):
    t = torch.linspace(2, 6, samples, device=dev) + torch.rand(len(origin), samples, device=dev) * 4 / samples
    points = origin[:, None] + direction[:, None] * t[..., None]
    rgb, sigma = field(points, direction[:, None])
    delta = torch.cat([t[:, 1:] - t[:, :-1], torch.full_like(t[:, :1], 1e10)], -1)
    alpha = 1 - torch.exp(-sigma.squeeze(-1) * delta)
    passed = torch.cumprod(torch.cat([torch.ones_like(alpha[:, :1]), 1 - alpha + 1e-10], -1), -1)[:, :-1]
    return ((alpha * passed)[..., None] * rgb).sum(1)


# %%
field = Field().to(dev)
opt = torch.optim.Adam(field.parameters(), 5e-4)
for i in range(steps):
    origin = torch.zeros(rays, 3, device=dev)
    direction = nn.functional.normalize(torch.randn(rays, 3, device=dev), dim=-1)
    loss = (render(field, origin, direction) - direction.abs()).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(i, loss.item())

# %%
if IN_NOTEBOOK:
    from IPython.display import display

    display(loss)
