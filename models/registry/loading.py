"""Finds the model that answers: the registry's champion, a version, or the default model in the package."""

import logging
from typing import TypeVar

from kopt.core.prediction import ModelVersion
from kopt.core.settings import Settings
from kopt.models.base import Predictor
from kopt.models.registry.aliases import CHAMPION, SHIPPED
from kopt.models.registry.artifact import ModelCard, read_card

P = TypeVar("P", bound=Predictor)
_LOG = logging.getLogger(__name__)


def load_predictor(name: str, model: str = CHAMPION, settings: Settings | None = None) -> Predictor:
    """The predictor ``name`` by alias, version or ``shipped``, verified.

    ``champion`` is the shipped model where this machine has no registry, none of this predictor in it, or one whose
    promotion is not proved, which is logged. Raises RegistryError or ArtefactError for a model that is not there or was
    altered.
    """
    from kopt.models.registry.registry import Registry, UnsealedError

    if model == CHAMPION and settings is not None and (settings.home / "mlflow.db").exists():
        pointed = Registry(settings).load_pointed(name)
        if pointed is not None:
            return pointed
    if model == SHIPPED or (model == CHAMPION and not _has_champion(name, settings)):
        return shipped(name)
    if settings is None:
        raise ValueError("a model of the registry needs settings that say where the registry is")
    try:
        return Registry(settings).load(name, model)
    except UnsealedError as error:
        _LOG.warning("%s. The model in the package answers instead.", str(error).rstrip("."))
        return shipped(name)


def load_as(kind: type[P], name: str, model: str = CHAMPION, settings: Settings | None = None) -> P:
    """The same, of a known kind. Raises TypeError for a model of another."""
    loaded = load_predictor(name, model, settings)
    if not isinstance(loaded, kind):
        raise TypeError(f"{loaded} is not a {kind.__name__}")
    return loaded


def load_card(name: str, model: str = CHAMPION, settings: Settings | None = None) -> ModelCard:
    """The card of the model that ``model`` names: which data it has seen. Raises as ``load_predictor`` does."""
    from kopt.models.registry.registry import Registry
    from kopt.models.registry.shipped import verified_shipped

    if model == SHIPPED or (model == CHAMPION and not _has_champion(name, settings)):
        return read_card(verified_shipped(name))
    if settings is None:
        raise ValueError("a model of the registry needs settings that say where the registry is")
    registry = Registry(settings)
    return read_card(registry.fetch(name, registry.get(name, model).version))


def shipped(name: str) -> Predictor:
    """The default model in the package, verified, with its version set. Raises ArtefactError."""
    from kopt.models.registry.shipped import load_shipped, shipped_digests

    loaded = load_shipped(name)
    loaded.version = ModelVersion(name, SHIPPED, shipped_digests()[name])
    return loaded


def _has_champion(name: str, settings: Settings | None) -> bool:
    """Looking does not make a registry."""
    if settings is None or not (settings.mlflow_uri or (settings.home / "mlflow.db").exists()):
        return False
    from kopt.models.registry.registry import Registry, RegistryError

    try:
        Registry(settings).get(name, CHAMPION)
    except RegistryError:
        return False
    return True
