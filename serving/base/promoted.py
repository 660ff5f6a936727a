"""The registry as serving sees it: only versions with a valid promotion seal answer, whatever the aliases say."""

from typing import Any

from kopt.models.registry.loading import shipped
from kopt.models.registry.registry import RegisteredModel, Registry, RegistryError


class Promoted:
    """Versions of a registry, loaded only where their promotion is proved (``models.registry.promotion_seals``)."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    def resolve(self, name: str, alias: str) -> RegisteredModel:
        """The version that the alias points to."""
        return self._registry.resolve(name, alias)

    def list(self, name: str) -> tuple[RegisteredModel, ...]:
        """Every version, newest first."""
        return self._registry.list(name)

    def load(self, name: str, version: str) -> Any:
        """The version's predictor. Raises UnsealedError for one whose promotion is not proved, or was undone."""
        return self._registry.load(name, version, promoted=True)

    def spare(self, name: str) -> Any:
        """What answers instead: the version that was promoted last, as it was fetched here, else the package's."""
        try:
            return self._registry.load_last_promoted(name)
        except RegistryError:
            return shipped(name)
