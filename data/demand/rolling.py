"""Forecasts from rolling origins, and the protocol by which they are judged.

A service's pool has ``GPUS`` GPUs, sized so that the 99.9 % quantile of demand fills it. The test window is the last
30 % of a series, at most 10 days.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Index = NDArray[np.int64]

GPUS = 64
SIZING_QUANTILE = 0.999
TEST_SHARE = 0.3
TEST_DAYS = 10
DAY_S = 86_400


@dataclass(frozen=True)
class Forecasts:
    """Quantiles ``value[i, h, q]`` of one service's demand ``horizons_s[h]`` after bucket ``origins[i]``.

    ``origins`` count buckets of the series on its grid; values are in bucket sums, non-decreasing over quantiles.
    """

    series: str
    origins: Index
    horizons_s: tuple[int, ...]
    quantiles: tuple[float, ...]
    value: Array

    def __post_init__(self) -> None:
        wanted = (len(self.origins), len(self.horizons_s), len(self.quantiles))
        if self.value.shape != wanted:
            raise ValueError(f"{self.series}: forecasts of shape {self.value.shape}, expected {wanted}")
        if not np.isfinite(self.value).all():
            raise ValueError(f"{self.series}: {int((~np.isfinite(self.value)).sum())} forecasts are not finite")
        if (np.diff(self.value, axis=2) < -1e-9).any():
            raise ValueError(f"{self.series}: quantiles decrease")

    def __len__(self) -> int:
        return len(self.origins)


def window_start(buckets: int, step_s: int) -> int:
    """First bucket of the test window."""
    return max(int(buckets * (1 - TEST_SHARE)), buckets - TEST_DAYS * DAY_S // step_s)
