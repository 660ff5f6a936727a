"""The pools of a cluster: how many GPUs each has, which nodes are in it; and whose the namespaces are."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class PoolSize:
    """``gpus_per_node`` is that of its largest node, and ``model`` what most of its GPUs are called; empty and 0 for a
    pool without nodes."""

    gpus: int = 0
    gpus_per_node: int = 0
    model: str = ""


@dataclass(frozen=True)
class ClusterPools:
    """``sizes`` by pool, ``of_nodes`` the pool of each node with GPUs, ``teams`` by namespace, without those that name
    none. ``ready`` is False before all of it was read once; ``problems`` are sentences."""

    sizes: Mapping[str, PoolSize] = field(default_factory=dict)
    of_nodes: Mapping[str, str] = field(default_factory=dict)
    teams: Mapping[str, str] = field(default_factory=dict)
    ready: bool = False
    problems: tuple[str, ...] = ()
