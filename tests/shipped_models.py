"""The real endpoint with the shipped model of demand, for tests."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from asgi_server import served

from kopt.core.settings import Settings
from kopt.features.store import DemandFeatureStore
from kopt.models.registry.registry import NotRegisteredError, RegisteredModel
from kopt.models.registry.shipped import load_shipped, shipped_digests
from kopt.serving.checkpoint.service import CheckpointService
from kopt.serving.demand.feature_lookup import StoredFeatures
from kopt.serving.endpoint.app import Endpoint, create_app
from kopt.serving.endpoint.assemble import Parts, assemble


class ShippedDemand:
    """A registry that knows the shipped model of demand as its champion, and no other."""

    def resolve(self, name: str, alias: str) -> RegisteredModel:
        if (name, alias) != ("demand", "champion"):
            raise NotRegisteredError(f"{name} has no {alias}")
        return RegisteredModel(name, "shipped", shipped_digests()[name], "run", 0.0, (alias,))

    def load(self, name: str, version: str) -> Any:
        return load_shipped(name)

    def list(self, name: str) -> tuple[RegisteredModel, ...]:
        return ()


@contextmanager
def shipped_endpoint(
    home: Path,
    settings: Settings | None = None,
    port: int = 0,
    prepare: Callable[[Endpoint], None] = lambda _: None,
) -> Iterator[str]:
    """The address of the real application over a real feature store in ``home``; what is shipped for checkpoints is
    loaded too. ``prepare`` may change it before it answers."""
    settings = settings or Settings(home=home)
    store = StoredFeatures(lambda: DemandFeatureStore(settings))
    endpoint = assemble(settings, Parts(ShippedDemand(), store, refresh_s=3600))
    endpoint.start()
    try:
        endpoint.service(CheckpointService).refresh()
        prepare(endpoint)
        with served(create_app(endpoint, manage=False), port=port) as url:
            yield url
    finally:
        endpoint.stop()
