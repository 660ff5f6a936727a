# VAE on 64x64 pictures
import os

import torch
import torch.nn as nn
import torch.nn.functional as F

BATCH_SIZE = int(os.getenv("BATCH_SIZE", "256"))
LATENT = int(os.getenv("LATENT", "256"))
MAX_STEPS = int(os.getenv("MAX_STEPS", "6"))
FOREACH = os.getenv("FOREACH", "1") == "1"
use_cuda = torch.cuda.is_available()
device = torch.device("cuda" if use_cuda else "cpu")


class Reparameterize(nn.Module):
    def forward(self, mu, logvar):
        return mu + torch.randn_like(mu) * (0.5 * logvar).exp()


def down(a, b):
    return nn.Sequential(nn.Conv2d(a, b, 4, 2, 1), nn.BatchNorm2d(b), nn.LeakyReLU())


def up(a, b):
    return nn.Sequential(nn.ConvTranspose2d(a, b, 4, 2, 1), nn.BatchNorm2d(b), nn.LeakyReLU())


encoder = nn.Sequential(down(3, 64), down(64, 128), down(128, 256), down(256, 512), nn.Flatten()).to(device)
to_mu, to_logvar = nn.Linear(512 * 16, LATENT).to(device), nn.Linear(512 * 16, LATENT).to(device)
sample = Reparameterize()
decoder = nn.Sequential(
    nn.Linear(LATENT, 512 * 16), nn.Unflatten(1, (512, 4, 4)),
    up(512, 256), up(256, 128), up(128, 64), nn.ConvTranspose2d(64, 3, 4, 2, 1), nn.Sigmoid(),
).to(device)
parameters = [p for part in (encoder, to_mu, to_logvar, decoder) for p in part.parameters()]
optimizer = torch.optim.Adam(parameters, lr=1e-3, foreach=FOREACH)

step = 0
while step < MAX_STEPS:
    x = torch.rand(BATCH_SIZE, 3, 64, 64, device=device)
    h = encoder(x)
    mu, logvar = to_mu(h), to_logvar(h)
    recon = decoder(sample(mu, logvar))
    bce = F.binary_cross_entropy(recon, x, reduction="sum")
    kld = -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())
    loss = bce + kld
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    step += 1
    print("step", step, "loss", loss.item() / BATCH_SIZE)
