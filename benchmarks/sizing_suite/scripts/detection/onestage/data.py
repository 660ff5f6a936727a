import torch
from torch.utils.data import Dataset


class Squares(Dataset):
    """Random pictures; each target is one grid per scale: objectness, box, class."""

    def __init__(self, n, size, classes=80, strides=(8, 16, 32)):
        self.n, self.size, self.classes, self.strides = n, size, classes, strides

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        torch.manual_seed(i)
        grids = []
        for s in self.strides:
            g = self.size // s
            obj = (torch.rand(g, g, 1) > 0.98).float()
            grids.append(torch.cat([obj, torch.rand(g, g, 4), torch.randint(self.classes, (g, g, 1)).float()], -1))
        return torch.rand(3, self.size, self.size), grids
