"""Conformer encoder with a CTC head."""
import torch
from torch import nn


class FeedForward(nn.Sequential):
    def __init__(self, dim, dropout):
        super().__init__(nn.LayerNorm(dim), nn.Linear(dim, 4 * dim), nn.SiLU(), nn.Dropout(dropout),
                         nn.Linear(4 * dim, dim), nn.Dropout(dropout))


class ConvModule(nn.Module):
    def __init__(self, dim, kernel, dropout):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.pointwise1 = nn.Conv1d(dim, 2 * dim, 1)
        self.depthwise = nn.Conv1d(dim, dim, kernel, padding=kernel // 2, groups=dim)
        self.bn = nn.BatchNorm1d(dim)
        self.pointwise2 = nn.Conv1d(dim, dim, 1)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        y = nn.functional.glu(self.pointwise1(self.norm(x).transpose(1, 2)), dim=1)
        y = self.pointwise2(nn.functional.silu(self.bn(self.depthwise(y))))
        return self.dropout(y.transpose(1, 2))


class ConformerBlock(nn.Module):
    def __init__(self, dim, heads, kernel=31, dropout=0.1):
        super().__init__()
        self.ff1, self.ff2 = FeedForward(dim, dropout), FeedForward(dim, dropout)
        self.norm = nn.LayerNorm(dim)
        self.attention = nn.MultiheadAttention(dim, heads, dropout, batch_first=True)
        self.conv = ConvModule(dim, kernel, dropout)
        self.final = nn.LayerNorm(dim)

    def forward(self, x, padding):
        x = x + 0.5 * self.ff1(x)
        h = self.norm(x)
        x = x + self.attention(h, h, h, key_padding_mask=padding, need_weights=False)[0]
        x = x + self.conv(x)
        return self.final(x + 0.5 * self.ff2(x))


class ConformerCTC(nn.Module):
    def __init__(self, mels=80, dim=256, layers=12, heads=4, vocab=1024):
        super().__init__()
        self.subsample = nn.Sequential(nn.Conv2d(1, dim, 3, 2), nn.ReLU(), nn.Conv2d(dim, dim, 3, 2), nn.ReLU())
        self.project = nn.Linear(dim * (((mels - 1) // 2 - 1) // 2), dim)
        self.blocks = nn.ModuleList(ConformerBlock(dim, heads) for _ in range(layers))
        self.head = nn.Linear(dim, vocab)

    def forward(self, mel, lengths):
        x = self.subsample(mel.unsqueeze(1))
        b, c, t, f = x.shape
        x = self.project(x.transpose(1, 2).reshape(b, t, c * f))
        lengths = ((lengths - 1) // 2 - 1) // 2
        padding = torch.arange(t, device=x.device)[None] >= lengths[:, None]
        for block in self.blocks:
            x = block(x, padding)
        return self.head(x).log_softmax(-1), lengths
