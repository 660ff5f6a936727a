"""A registry for tests of the real endpoint: it knows the shipped model of demand, and no other."""

from typing import Any

from kopt.models.registry.registry import NotRegisteredError, RegisteredModel
from kopt.models.registry.shipped import load_shipped, shipped_digests


class ShippedDemand:
    """Its champion is the model that is shipped."""

    def resolve(self, name: str, alias: str) -> RegisteredModel:
        if (name, alias) != ("demand", "champion"):
            raise NotRegisteredError(f"{name} has no {alias}")
        return RegisteredModel(name, "shipped", shipped_digests()[name], "run", 0.0, (alias,))

    def load(self, name: str, version: str) -> Any:
        return load_shipped(name)

    def list(self, name: str) -> tuple[RegisteredModel, ...]:
        return ()
