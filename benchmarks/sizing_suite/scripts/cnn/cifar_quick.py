# quick cifar baseline, run me: python cifar_quick.py [batch] [epochs] [steps]
import sys

import torch
import torch.nn as nn
import torch.nn.functional as F
import torchvision.transforms as T
from torch.utils.data import DataLoader
from torchvision.datasets import FakeData

batch = int(sys.argv[1]) if len(sys.argv) > 1 else 128
epochs = int(sys.argv[2]) if len(sys.argv) > 2 else 1
steps = int(sys.argv[3]) if len(sys.argv) > 3 else 6
device = "cuda" if torch.cuda.is_available() else "cpu"

transform = T.Compose([
    T.RandomCrop(32, padding=4),
    T.RandomHorizontalFlip(),
    T.ToTensor(),
    T.Normalize((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
])
trainset = FakeData(batch * steps, (3, 32, 32), 10, transform)
testset = FakeData(2 * batch, (3, 32, 32), 10, T.ToTensor())


class Block(nn.Module):
    def __init__(self, cin, cout, stride=1):
        super().__init__()
        self.conv1 = nn.Conv2d(cin, cout, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(cout)
        self.conv2 = nn.Conv2d(cout, cout, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(cout)
        self.short = nn.Sequential()
        if stride != 1 or cin != cout:
            self.short = nn.Sequential(nn.Conv2d(cin, cout, 1, stride, bias=False), nn.BatchNorm2d(cout))

    def forward(self, x):
        y = F.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        return F.relu(y + self.short(x))


net = nn.Sequential(
    nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True),
    Block(64, 64), Block(64, 64),
    Block(64, 128, 2), Block(128, 128),
    Block(128, 256, 2), Block(256, 256),
    Block(256, 512, 2), Block(512, 512),
    nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10),
).to(device)
print(sum(p.numel() for p in net.parameters()) / 1e6, "M parameters")

opt = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4, nesterov=True)
sched = torch.optim.lr_scheduler.OneCycleLR(opt, max_lr=0.1, total_steps=epochs * steps + 1)

for epoch in range(epochs):
    net.train()
    running = 0.0
    for x, y in DataLoader(trainset, batch, shuffle=True):
        x, y = x.to(device), y.to(device)
        opt.zero_grad()
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        opt.step()
        sched.step()
        running += loss.item()
    net.eval()
    correct = 0
    with torch.no_grad():
        for x, y in DataLoader(testset, 2 * batch):
            correct += (net(x.to(device)).argmax(1).cpu() == y).sum().item()
    print(f"epoch {epoch}: train loss {running / steps:.3f}, test acc {100 * correct / len(testset):.1f}%")
