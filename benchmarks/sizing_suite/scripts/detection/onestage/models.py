"""A small one-stage detector: CSP-like backbone, three scales, one head for each."""
import torch
import torch.nn as nn


class Conv(nn.Module):
    def __init__(self, c1, c2, k=1, s=1):
        super().__init__()
        self.conv = nn.Conv2d(c1, c2, k, s, k // 2, bias=False)
        self.bn = nn.BatchNorm2d(c2, eps=1e-3, momentum=0.03)
        self.act = nn.SiLU(inplace=True)

    def forward(self, x):
        return self.act(self.bn(self.conv(x)))


class C2f(nn.Module):
    def __init__(self, c1, c2, n=1, shortcut=True):
        super().__init__()
        self.c = c2 // 2
        self.cv1 = Conv(c1, 2 * self.c)
        self.cv2 = Conv((2 + n) * self.c, c2)
        self.m = nn.ModuleList(nn.Sequential(Conv(self.c, self.c, 3), Conv(self.c, self.c, 3)) for _ in range(n))
        self.shortcut = shortcut

    def forward(self, x):
        y = list(self.cv1(x).chunk(2, 1))
        for m in self.m:
            y.append(m(y[-1]) + y[-1] if self.shortcut else m(y[-1]))
        return self.cv2(torch.cat(y, 1))


class Detector(nn.Module):
    def __init__(self, width=64, classes=80):
        super().__init__()
        w = width
        self.stem = nn.Sequential(Conv(3, w, 3, 2), Conv(w, 2 * w, 3, 2), C2f(2 * w, 2 * w, 1))
        self.p3 = nn.Sequential(Conv(2 * w, 4 * w, 3, 2), C2f(4 * w, 4 * w, 2))
        self.p4 = nn.Sequential(Conv(4 * w, 8 * w, 3, 2), C2f(8 * w, 8 * w, 2))
        self.p5 = nn.Sequential(Conv(8 * w, 8 * w, 3, 2), C2f(8 * w, 8 * w, 1))
        self.up = nn.Upsample(scale_factor=2)
        self.n4 = C2f(16 * w, 8 * w, 1, shortcut=False)
        self.n3 = C2f(12 * w, 4 * w, 1, shortcut=False)
        self.heads = nn.ModuleList(nn.Conv2d(c, 5 + classes, 1) for c in (4 * w, 8 * w, 8 * w))

    def forward(self, x):
        p3 = self.p3(self.stem(x))
        p4 = self.p4(p3)
        p5 = self.p5(p4)
        n4 = self.n4(torch.cat([self.up(p5), p4], 1))
        n3 = self.n3(torch.cat([self.up(n4), p3], 1))
        return [head(f).permute(0, 2, 3, 1) for head, f in zip(self.heads, (n3, n4, p5))]
