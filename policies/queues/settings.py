"""What a compiler has to know beside the tree."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from kopt.core.scheduling.queue_tree import (
    DEFAULT_GPU_RESOURCE,
    GPU,
    MANAGED,
    MANAGED_LABEL,
    UNLIMITED,
    Engine,
    KaiwoPool,
    KaiwoQueue,
    NotExpressible,
    Shares,
)
from kopt.core.units import format_thousandths
from kopt.policies.queues.tree import QueueTree

DISPLAY_NAME_ANNOTATION = "kaiwo.ai/display-name"


@dataclass(frozen=True)
class Settings:
    """``gpu_resource`` is what ``gpu`` means in pools that are not declared.

    ``delays_reclaim``: somebody evicts borrowers for conservative queues after their grace, where Kueue never does.
    """

    gpu_resource: str = DEFAULT_GPU_RESOURCE
    delays_reclaim: bool = False

    def pool(self, tree: QueueTree, name: str) -> KaiwoPool:
        """A pool as it was declared, or one of which nothing is known."""
        return tree.pools.get(name) or KaiwoPool(name, gpu_resource=self.gpu_resource)


@dataclass
class Report:
    """Collects what cannot be expressed."""

    default_pool: str
    entries: list[NotExpressible] = field(default_factory=list)

    def add(self, entry: NotExpressible) -> None:
        self.entries.append(entry)

    def of_another(self, queue: KaiwoQueue, engine: Engine, fields: Mapping[str, Any], own: Engine) -> None:
        """Fields that only another engine knows."""
        if fields:
            listed = ", ".join(f"{key}={value}" for key, value in fields.items())
            text = f"meant for {engine.value} alone, and nothing to {own.value}: {listed}."
            self.add(NotExpressible("OF_ANOTHER_ENGINE", f"{queue.name}/spec.{engine.value}", text))

    def path(self, name: str, pool: str, resource: str, field_name: str = "") -> str:
        """The path of a share, or of a field of it."""
        root = "spec.resources" if pool == self.default_pool else f"spec.pools[{pool}].resources"
        return f"{name}/{root}.{resource}" + (f".{field_name}" if field_name else "")


def manifest(
    api_version: str,
    kind: str,
    name: str,
    spec: Mapping[str, Any],
    *,
    namespace: str = "",
    labels: Iterable[tuple[str, str]] = (),
    annotations: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """An object that is ours to write."""
    metadata: dict[str, Any] = {"name": name}
    if namespace:
        metadata["namespace"] = namespace
    metadata["labels"] = {MANAGED_LABEL: MANAGED, **dict(labels)}
    if annotations:
        metadata["annotations"] = dict(annotations)
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata, "spec": dict(spec)}


def weight_of(tree: QueueTree, name: str) -> tuple[int | None, list[tuple[str, str]]]:
    """One weight for a queue of an engine that has no more, that of its GPUs first; and the places whose weight is
    another, which are not expressed."""
    weights = {
        (pool, resource): share.weight
        for pool, shares in tree.queues[name].pools.items()
        for resource, share in shares.items()
        if share.weight is not None
    }
    if not weights:
        return None, []
    weight = weights[min(weights, key=lambda location: location[1] != GPU)]
    return weight, [location for location, other in weights.items() if other != weight]


def in_words(amount: int | None) -> str:
    """An amount of a share, for people."""
    return "–" if amount is None else "unlimited" if amount == UNLIMITED else format_thousandths(amount)


def format_shares(shares: Shares) -> str:
    """What a queue has of each resource, for people."""
    return ", ".join(
        f"{name} quota {in_words(share.quota)} limit {in_words(share.limit)} guarantee {in_words(share.guarantee)} "
        f"weight {in_words(share.weight)}"
        for name, share in shares.items()
    )
