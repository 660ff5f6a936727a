"""The rule of ``policies.lending`` over whole series at once, for replays, evaluation and plots."""

import numpy as np
from numpy.typing import NDArray

from kopt.policies.lending import ROUNDING

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def provision_arrays(
    forecast: Floats, recent_max: Floats, capacity_per_gpu: float, *, minimum_gpus: int = 1,
    total_gpus: int | None = None, reactive_margin: float = 1.2,
) -> Ints:  # fmt: skip
    """Whole GPUs to keep at every origin, shape (n,): ``max(reactive, forecast)`` within minimum and total.

    ``forecast`` is the demand at the provisioning quantile and ``recent_max`` the largest of the last half hour, both
    (n,) in units per bucket; a NaN forecast leaves the reactive rule, a NaN in both keeps every GPU.
    Raises ValueError when capacity is not positive or the minimum exceeds the total.
    """
    if not capacity_per_gpu > 0 or (total_gpus is not None and not 0 <= minimum_gpus <= total_gpus):
        raise ValueError(f"capacity {capacity_per_gpu:g}, minimum {minimum_gpus} and total {total_gpus} do not fit")
    demand = np.fmax(reactive_margin * recent_max, forecast)
    unknown = np.isnan(demand)
    gpus = np.ceil(np.where(unknown, 0.0, demand) / capacity_per_gpu * (1 - ROUNDING)).astype(np.int64)
    gpus = np.maximum(gpus, minimum_gpus)
    if total_gpus is None:
        if unknown.any():
            raise ValueError("neither forecast nor recent demand is known, and no total to fall back to")
        return gpus
    capped: Ints = np.where(unknown, total_gpus, np.minimum(gpus, total_gpus))
    return capped


def hold_arrays(need_gpus: Ints, hold_buckets: int) -> Ints:
    """The largest need of the present and the last ``hold_buckets`` buckets, shape (n,)."""
    if hold_buckets <= 0 or not len(need_gpus):
        return need_gpus
    padded = np.concatenate([np.full(hold_buckets, need_gpus.min()), need_gpus])
    held: Ints = np.lib.stride_tricks.sliding_window_view(padded, hold_buckets + 1).max(1)
    return held
