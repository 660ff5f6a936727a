"""A small network for the median log-ratio at every horizon: fitted with torch, evaluated with numpy.

Two hidden layers on standardised, clipped inputs. Serving evaluates it as three matrix products and so never imports
torch; weights are stored as safetensors.
"""

from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import torch

Array = NDArray[np.float64]
_HIDDEN = 64
_BATCH = 1024
_CLIP = 4.0
"""Standard deviations beyond which an input says no more than 'far'."""


@dataclass(frozen=True)
class Network:
    """``centre`` and ``scale`` (inputs,) standardise; weights of layer i are (in, out)."""

    centre: Array
    scale: Array
    weight_0: Array
    bias_0: Array
    weight_1: Array
    bias_1: Array
    weight_2: Array
    bias_2: Array

    def predict(self, inputs: Array) -> Array:
        """Median log-ratios, shape (n, H)."""
        hidden = _standardise(inputs, self.centre, self.scale)
        hidden = np.maximum(hidden @ self.weight_0 + self.bias_0, 0)
        hidden = np.maximum(hidden @ self.weight_1 + self.bias_1, 0)
        return hidden @ self.weight_2 + self.bias_2

    @classmethod
    def fit(cls, inputs: Array, targets: Array, weights: Array, epochs: int, seed: int) -> "Network":
        """Least weighted absolute error by AdamW with a cosine schedule, averaged over the last third of the epochs."""
        import torch

        generator = torch.Generator().manual_seed(seed)
        centre, scale = np.nanmean(inputs, 0), np.nanstd(inputs, 0) + 1e-6
        x = torch.tensor(_standardise(inputs, centre, scale), dtype=torch.float32)
        y = torch.tensor(np.clip(targets, -3, 3), dtype=torch.float32)
        w = torch.tensor(weights, dtype=torch.float32)[:, None]
        layers = [
            _layer(a, b, generator) for a, b in ((x.shape[1], _HIDDEN), (_HIDDEN, _HIDDEN), (_HIDDEN, y.shape[1]))
        ]
        flat = [tensor.requires_grad_() for layer in layers for tensor in layer]
        optimizer = torch.optim.AdamW(flat, lr=2e-3, weight_decay=1e-2)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, max(1, epochs * (len(x) // _BATCH + 1)))
        kept: list[list[Array]] = []
        for epoch in range(epochs):
            order = torch.randperm(len(x), generator=generator)
            for batch in torch.split(order, _BATCH):
                hidden = torch.relu(x[batch] @ flat[0] + flat[1])
                hidden = torch.relu(hidden @ flat[2] + flat[3])
                loss = (w[batch] * (hidden @ flat[4] + flat[5] - y[batch]).abs()).mean()
                optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                schedule.step()
            if epoch >= epochs * 2 // 3:
                kept.append([tensor.detach().numpy().astype(np.float64) for tensor in flat])
        return cls(centre, scale, *(np.mean(versions, axis=0) for versions in zip(*kept, strict=True)))

    def save(self, path: Path) -> None:
        from safetensors.numpy import save_file

        save_file({field.name: getattr(self, field.name) for field in fields(self)}, str(path))

    @classmethod
    def load(cls, path: Path) -> "Network":
        from safetensors import SafetensorError
        from safetensors.numpy import load_file

        try:
            return cls(**load_file(str(path)))
        except (SafetensorError, TypeError, OSError) as error:
            raise ValueError(f"{path}: not the weights of this network ({error})") from error


def _standardise(inputs: Array, centre: Array, scale: Array) -> Array:
    """Missing inputs become the centre."""
    return np.nan_to_num(np.clip((inputs - centre) / scale, -_CLIP, _CLIP))


def _layer(rows: int, columns: int, generator: "torch.Generator") -> "tuple[torch.Tensor, torch.Tensor]":
    import torch

    weight = torch.randn(rows, columns, generator=generator) * (2.0 / rows) ** 0.5
    return weight, torch.zeros(columns)
