#!/usr/bin/env python
# coding: utf-8

# # Vision Transformer from scratch
# Exported from `vit_notebook.ipynb`.

# In[1]:


# %%
import math
import os

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

if "get_ipython" in globals():
    get_ipython().run_line_magic("matplotlib", "inline")  # noqa: F821

BATCH = int(os.environ.get("BATCH", 32))
DEPTH = int(os.environ.get("DEPTH", 12))
WIDTH = int(os.environ.get("WIDTH", 384))
STEPS = int(os.environ.get("STEPS", 5))
IMAGE, PATCH = int(os.environ.get("IMAGE", 224)), 16
torch.manual_seed(0)
np.random.seed(0)
device = torch.device("cuda") if torch.cuda.is_available() else torch.device("cpu")
device


# %% [markdown]
# ## Attention, written out: the whole matrix of scores is kept

# In[2]:


# %%
class Attention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)
        self.drop = nn.Dropout(0.1)

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.qkv(x).reshape(b, n, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        scores = (q @ k.transpose(-2, -1)) / math.sqrt(d // self.heads)
        weights = self.drop(scores.softmax(dim=-1))
        return self.proj((weights @ v).transpose(1, 2).reshape(b, n, d))


class Layer(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attn = Attention(dim, heads)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Dropout(0.1), nn.Linear(4 * dim, dim))

    def forward(self, x):
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class ViT(nn.Module):
    def __init__(self, image=IMAGE, patch=PATCH, dim=WIDTH, depth=DEPTH, classes=100):
        super().__init__()
        self.patches = nn.Conv2d(3, dim, patch, patch)
        self.cls = nn.Parameter(torch.zeros(1, 1, dim))
        self.pos = nn.Parameter(torch.randn(1, (image // patch) ** 2 + 1, dim) * 0.02)
        self.layers = nn.Sequential(*[Layer(dim, dim // 64) for _ in range(depth)])
        self.head = nn.Linear(dim, classes)

    def forward(self, x):
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls.expand(len(x), -1, -1), x], dim=1) + self.pos
        return self.head(self.layers(x)[:, 0])


# In[3]:


# %%
model = ViT().to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=3e-4)
images = np.random.rand(BATCH * 2, 3, IMAGE, IMAGE).astype("float32")
labels = np.random.randint(0, 100, BATCH * 2)

# %%
history = []
for step in range(STEPS):
    pick = np.random.permutation(len(images))[:BATCH]
    x = torch.from_numpy(images[pick]).to(device)
    y = torch.from_numpy(labels[pick]).long().to(device)
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    history.append(loss.item())
print(history)

# In[ ]:
