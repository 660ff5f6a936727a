"""Fails as scripts do: a shape that does not fit, after a step that did."""

import torch

layer = torch.nn.Linear(16, 16).cuda()
optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
layer(torch.randn(4, 16, device="cuda")).sum().backward()
optimizer.step()
layer(torch.randn(4, 17, device="cuda"))
