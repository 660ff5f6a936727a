"""A small network for the median log-ratio at every horizon: fitted with torch, evaluated with numpy.

What counts as much on a restless service is nothing on a calm one, so inputs and targets are measured in the service's
own daily spread of moves over the horizon: without that, errors on services never seen were a sixth larger. Two hidden
layers. Serving evaluates it as three matrix products and so never imports torch; weights are stored as safetensors.
"""

from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from kopt.data.demand.table import GRID_S
from kopt.features.demand import CARRIERS, COLUMN, INPUTS
from kopt.models.registry.model_files import read_tensors

if TYPE_CHECKING:
    import torch

Array = NDArray[np.float64]
_HIDDEN = 64
_BATCH = 1024
_DROPOUT = 0.1
_CLIP = 4.0
"""Standard deviations beyond which an input says no more than 'far'."""
_FAR = 30.0
_TARGET_CLIP = 3.0
"""Moves of more than this many daily spreads teach nothing about the ordinary."""
_SMALLEST_SPREAD, _USUAL_SPREAD = 0.003, 0.1
_SPREADS = ("roughness_1440m", "jump_deviation_1d_30m", "jump_deviation_1d_60m")
_ROUGHNESS = tuple(f"roughness_{minutes}m" for minutes in (30, 60, 120, 360))


def _spread_of(name: str) -> int:
    """Which horizon's spread an input is measured in."""
    about_the_day = name.startswith("da")
    return 0 if name.endswith("_5m") else 2 if about_the_day and name.endswith("_60m") else 1


_MEASURED_IN = np.array([_spread_of(name) for name in INPUTS])
_UNMEASURED = INPUTS.index("days_seen")


def spreads(features: Array) -> Array:
    """Standard deviation (n, H) of the past day's moves in logarithms over each horizon; never zero."""
    steps = np.nan_to_num(features[:, COLUMN[_SPREADS[0]]], nan=_USUAL_SPREAD)
    array = np.nan_to_num(features[:, [COLUMN[name] for name in _SPREADS]], nan=_USUAL_SPREAD)
    result: Array = np.maximum(array, 0.5 * steps[:, None]) + _SMALLEST_SPREAD
    return result


def network_inputs(features: Array) -> Array:
    """Inputs (n, inputs) of the network for feature rows (n, F): in units of spread, and the spreads themselves."""
    spread, inputs = spreads(features), features[:, len(CARRIERS) :]
    measured = np.arcsinh(np.clip(inputs / spread[:, _MEASURED_IN], -_FAR, _FAR))
    measured[:, _UNMEASURED] = inputs[:, _UNMEASURED]
    rough = np.log(features[:, [COLUMN[name] for name in (_SPREADS[0], *_ROUGHNESS)]] + 1e-3)
    middle = np.log(spread[:, 1])
    return np.column_stack(
        [
            measured,
            middle,
            np.log(spread[:, 0]) - middle,
            np.log(spread[:, 2]) - middle,
            rough[:, 1:] - rough[:, :1],
            features[:, COLUMN["step_s"]] > GRID_S,
        ]
    )


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

    def predict(self, features: Array) -> Array:
        """Median log-ratios, shape (n, H), for feature rows (n, F)."""
        hidden = _standardise(network_inputs(features), self.centre, self.scale)
        hidden = np.maximum(hidden @ self.weight_0 + self.bias_0, 0)
        hidden = np.maximum(hidden @ self.weight_1 + self.bias_1, 0)
        return (hidden @ self.weight_2 + self.bias_2) * spreads(features)

    @classmethod
    def fit(cls, features: Array, targets: Array, weights: Array, epochs: int, seed: int) -> "Network":
        """Least weighted absolute error by AdamW with a cosine schedule, averaged over the last third of the epochs.

        ``targets`` (n, H) are log-ratios of feature rows (n, F).
        """
        import torch

        generator = torch.Generator().manual_seed(seed)
        inputs = network_inputs(features)
        centre, scale = _centre_and_scale(inputs)
        x = torch.tensor(_standardise(inputs, centre, scale), dtype=torch.float32)
        clipped = np.clip(targets / spreads(features), -_TARGET_CLIP, _TARGET_CLIP)
        y = torch.tensor(clipped, dtype=torch.float32)
        w = torch.tensor(weights, dtype=torch.float32)[:, None]
        sizes = ((x.shape[1], _HIDDEN), (_HIDDEN, _HIDDEN), (_HIDDEN, y.shape[1]))
        flat = [tensor.requires_grad_() for size in sizes for tensor in _layer(*size, generator)]
        optimizer = torch.optim.AdamW(flat, lr=2e-3, weight_decay=1e-2)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, max(1, epochs * (len(x) // _BATCH + 1)))
        kept: list[list[Array]] = []

        def weights_now() -> list[Array]:
            return [tensor.detach().numpy().astype(np.float64) for tensor in flat]

        for epoch in range(epochs):
            for batch in torch.split(torch.randperm(len(x), generator=generator), _BATCH):
                loss = (w[batch] * (_forward(flat, x[batch], generator) - y[batch]).abs()).mean()
                optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                schedule.step()
            if epoch >= epochs * 2 // 3:
                kept.append(weights_now())
        # The search over parameters of the trees does without a fitted network: no epochs.
        averaged = (np.mean(versions, axis=0) for versions in zip(*(kept or [weights_now()]), strict=True))
        return cls(centre, scale, *averaged)

    def save(self, path: Path) -> None:
        from safetensors.numpy import save_file

        save_file({field.name: getattr(self, field.name) for field in fields(self)}, str(path))

    @classmethod
    def load(cls, path: Path) -> "Network":
        try:
            return cls(**read_tensors(path))
        except (TypeError, ValueError) as error:
            raise ValueError(f"{path}: not the weights of this network ({error})") from error


def _centre_and_scale(inputs: Array) -> tuple[Array, Array]:
    """Median and deviation of every input; one never seen has infinite scale, so that it says nothing later either."""
    present = np.isfinite(inputs).any(0)
    filled = np.where(present, inputs, 0.0)
    return np.nanmedian(filled, 0), np.where(present, np.nanstd(filled, 0) + 1e-6, np.inf)


def _standardise(inputs: Array, centre: Array, scale: Array) -> Array:
    """Missing inputs become the centre."""
    return np.nan_to_num(np.clip((inputs - centre) / scale, -_CLIP, _CLIP))


def _forward(flat: "list[torch.Tensor]", x: "torch.Tensor", generator: "torch.Generator") -> "torch.Tensor":
    """The network in training, with dropout after the first layer."""
    import torch

    hidden = torch.relu(x @ flat[0] + flat[1])
    hidden = hidden * (torch.rand(hidden.shape, generator=generator) >= _DROPOUT) / (1 - _DROPOUT)
    hidden = torch.relu(hidden @ flat[2] + flat[3])
    return hidden @ flat[4] + flat[5]


def _layer(rows: int, columns: int, generator: "torch.Generator") -> "tuple[torch.Tensor, torch.Tensor]":
    import torch

    weight = torch.randn(rows, columns, generator=generator) * (2.0 / rows) ** 0.5
    return weight, torch.zeros(columns)
