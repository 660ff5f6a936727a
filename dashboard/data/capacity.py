"""How many GPUs a service holds and what one of them serves.

``KOPT_HOME/services.toml`` says it where the operator knows it::

    [chat-00]
    gpus = 32            # GPUs the service holds
    per_gpu = 600        # demand that one GPU serves in five minutes, in the unit of the series
    minimum = 2          # never lent (default 1)
    pool = "llm"         # services of one pool share their GPUs (default: each its own)

``engine``, ``labels``, ``query`` and ``series`` in the same entry say where the demand is measured; an
entry of only these says nothing here.

Without an entry a convention stands in, and the pages say so: 64 GPUs that just serve the 99.9th percentile of the
last two weeks, the convention of ``kopt simulate lending``.
"""

import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from kopt.data.demand.table import DemandSeries

FILE = "services.toml"
SOURCE_KEYS = frozenset({"engine", "labels", "query", "series"})
ASSUMED_GPUS = 64
ASSUMED_QUANTILE = 0.999
_WINDOW_S = 14 * 86_400
_MAX_GPUS = 1_000_000


class CapacityError(ValueError):
    """services.toml cannot be used; the message names the service and what was expected."""


@dataclass(frozen=True)
class Capacity:
    """``per_gpu`` is demand per bucket and GPU, None where nothing is known; ``assumed`` marks the convention."""

    gpus: int = ASSUMED_GPUS
    per_gpu: float | None = None
    minimum: int = 1
    pool: str = ""
    assumed: bool = True


def assumed_capacity(series: DemandSeries) -> Capacity:
    """The convention; without a capacity for a service that has had no demand."""
    recent = series.value[-max(1, _WINDOW_S // series.step_s) :]
    finite = recent[np.isfinite(recent)]
    peak = float(np.quantile(finite, ASSUMED_QUANTILE)) if len(finite) else 0.0
    return Capacity(per_gpu=peak / ASSUMED_GPUS if peak > 0 else None)


def read_capacities(path: Path) -> Mapping[str, Capacity]:
    """Capacities by service; empty without the file. Raises CapacityError."""
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        raise CapacityError(f"{path}: {error}") from error
    return {
        name: _capacity(f"{path}, [{name[:80]}]", entry)
        for name, entry in table.items()
        if not (isinstance(entry, dict) and entry and set(entry) <= SOURCE_KEYS)
    }


def _capacity(location: str, entry: object) -> Capacity:
    if not isinstance(entry, dict) or (unknown := set(entry) - {"gpus", "per_gpu", "minimum", "pool"} - SOURCE_KEYS):
        what = f"unknown key {min(unknown)!r}" if isinstance(entry, dict) else "not a table"
        raise CapacityError(
            f"{location}: {what}; known are gpus, per_gpu, minimum, pool and {', '.join(sorted(SOURCE_KEYS))}"
        )
    gpus, minimum = (
        _count(location, key, entry.get(key, default)) for key, default in (("gpus", None), ("minimum", 1))
    )
    per_gpu, pool = entry.get("per_gpu"), entry.get("pool", "")
    if isinstance(per_gpu, bool) or not isinstance(per_gpu, int | float) or not 0 < per_gpu < math.inf:
        raise CapacityError(f"{location}: per_gpu is {per_gpu!r}; expected a positive number")
    if not isinstance(pool, str) or len(pool) > 253 or not (pool == "" or pool.isprintable()):
        raise CapacityError(f"{location}: pool is {str(pool)[:40]!r}; expected a printable name")
    return Capacity(gpus, float(per_gpu), minimum, pool, assumed=False)


def _count(location: str, key: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _MAX_GPUS:
        raise CapacityError(f"{location}: {key} is {value!r}; expected a whole number of GPUs")
    return value
