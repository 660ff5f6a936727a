"""FLOPs per operation: torch's own formulas, two per multiply-add."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def formulas() -> dict[Any, Callable[..., int]]:
    """By operator packet; called as ``formula(*args, **kwargs, out_val=out)``."""
    from torch.utils.flop_counter import flop_registry

    return dict(flop_registry)
