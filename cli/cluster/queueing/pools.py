"""Pools of GPUs as options name them and as a cluster has them, and what their GPUs cost."""

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from kopt.cli.cluster.listing import list_objects
from kopt.cli.errors import usage_error

if TYPE_CHECKING:
    from kopt.core.cost.prices import PriceBook
    from kopt.core.hardware.pools import PoolSize

_MOST = 10_000_000


def numbers_of(written: Sequence[str], option: str, name: str = "POOL") -> dict[str, int]:
    """Of ``POOL=NUMBER``, each above 0. Wrong usage ends the process with status 2."""
    result = {}
    for item in written:
        of, equals, number = item.rpartition("=")
        if not equals or not of or not number.isdecimal() or not 0 < int(number) <= _MOST:
            usage_error(f"{item!r} is not {name}=NUMBER", option)
        result[of] = int(number)
    return result


async def sizes_of_pools(kubeconfig: Path | None) -> "dict[str, PoolSize]":
    """By ResourceFlavor. Raises Refused without a cluster."""
    from kopt.cluster.client.resources import KUEUE_FLAVORS, NODES
    from kopt.cluster.workloads.kueue.pool_sizes import pool_sizes
    from kopt.cluster.workloads.requests.external import RESOURCE_SLICES

    otherwise = "say how many GPUs each pool has: --gpus POOL=NUMBER"
    kinds = (KUEUE_FLAVORS, NODES, RESOURCE_SLICES)
    return pool_sizes(*await list_objects(kubeconfig, *kinds, needed="nodes", otherwise=otherwise))


def on_demand_price(book: "PriceBook", model: str) -> float | None:
    """Of a GPU-hour now; None without one."""
    return book.on_demand(model, int(datetime.now(UTC).timestamp() * 1000))
