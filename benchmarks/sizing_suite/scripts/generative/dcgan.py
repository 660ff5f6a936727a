from __future__ import print_function

import argparse
import random

import torch
import torch.nn as nn
import torch.nn.parallel
import torch.optim as optim
import torch.utils.data
import torchvision.datasets as dset
import torchvision.transforms as transforms

parser = argparse.ArgumentParser()
parser.add_argument("--workers", type=int, default=2)
parser.add_argument("--batchSize", type=int, default=64)
parser.add_argument("--nz", type=int, default=100, help="size of the latent z vector")
parser.add_argument("--ngf", type=int, default=64)
parser.add_argument("--ndf", type=int, default=64)
parser.add_argument("--niter", type=int, default=6, help="batches to train for")
parser.add_argument("--cuda", action="store_true", default=False)
parser.add_argument("--manualSeed", type=int)
opt = parser.parse_args()
print(opt)
if opt.manualSeed is None:
    opt.manualSeed = random.randint(1, 10000)
random.seed(opt.manualSeed)
torch.manual_seed(opt.manualSeed)
device = torch.device("cuda:0" if opt.cuda else "cpu")

dataset = dset.FakeData(opt.batchSize * opt.niter, image_size=(3, 64, 64), transform=transforms.ToTensor())
dataloader = torch.utils.data.DataLoader(dataset, batch_size=opt.batchSize, shuffle=True, num_workers=opt.workers)
nc, nz, ngf, ndf = 3, opt.nz, opt.ngf, opt.ndf


def weights_init(m):
    classname = m.__class__.__name__
    if classname.find("Conv") != -1:
        torch.nn.init.normal_(m.weight, 0.0, 0.02)
    elif classname.find("BatchNorm") != -1:
        torch.nn.init.normal_(m.weight, 1.0, 0.02)
        torch.nn.init.zeros_(m.bias)


def gen(a, b, k=4, s=2, p=1):
    return [nn.ConvTranspose2d(a, b, k, s, p, bias=False), nn.BatchNorm2d(b), nn.ReLU(True)]


def dis(a, b):
    return [nn.Conv2d(a, b, 4, 2, 1, bias=False), nn.BatchNorm2d(b), nn.LeakyReLU(0.2, inplace=True)]


netG = nn.Sequential(*gen(nz, ngf * 8, 4, 1, 0), *gen(ngf * 8, ngf * 4), *gen(ngf * 4, ngf * 2), *gen(ngf * 2, ngf),
                     nn.ConvTranspose2d(ngf, nc, 4, 2, 1, bias=False), nn.Tanh()).to(device)
netD = nn.Sequential(nn.Conv2d(nc, ndf, 4, 2, 1, bias=False), nn.LeakyReLU(0.2, inplace=True), *dis(ndf, ndf * 2),
                     *dis(ndf * 2, ndf * 4), *dis(ndf * 4, ndf * 8), nn.Conv2d(ndf * 8, 1, 4, 1, 0, bias=False),
                     nn.Sigmoid()).to(device)
netG.apply(weights_init)
netD.apply(weights_init)
criterion = nn.BCELoss()
fixed_noise = torch.randn(opt.batchSize, nz, 1, 1, device=device)
optimizerD = optim.Adam(netD.parameters(), lr=0.0002, betas=(0.5, 0.999))
optimizerG = optim.Adam(netG.parameters(), lr=0.0002, betas=(0.5, 0.999))

for i, data in enumerate(dataloader, 0):
    # (1) Update D network: maximize log(D(x)) + log(1 - D(G(z)))
    netD.zero_grad()
    real = data[0].to(device)
    batch_size = real.size(0)
    label = torch.full((batch_size,), 1.0, dtype=real.dtype, device=device)
    errD_real = criterion(netD(real).view(-1), label)
    errD_real.backward()
    noise = torch.randn(batch_size, nz, 1, 1, device=device)
    fake = netG(noise)
    label.fill_(0.0)
    errD_fake = criterion(netD(fake.detach()).view(-1), label)
    errD_fake.backward()
    optimizerD.step()
    # (2) Update G network: maximize log(D(G(z)))
    netG.zero_grad()
    label.fill_(1.0)
    errG = criterion(netD(fake).view(-1), label)
    errG.backward()
    optimizerG.step()
    print("[%d/%d] Loss_D: %.4f Loss_G: %.4f" % (i, len(dataloader), (errD_real + errD_fake).item(), errG.item()))
with torch.no_grad():
    netG(fixed_noise)
