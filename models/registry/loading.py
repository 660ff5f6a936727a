"""Finds the model that answers: the registry's champion, a version, or the default model in the package."""

from kopt.core.prediction import ModelVersion
from kopt.core.settings import Settings
from kopt.models.base import Predictor

SHIPPED = "shipped"
CHAMPION = "champion"


def load_predictor(name: str, model: str = CHAMPION, settings: Settings | None = None) -> Predictor:
    """The predictor ``name`` by alias, version or ``shipped``, verified.

    ``champion`` is the shipped model where this machine has no registry, or none of this predictor in it. Raises
    RegistryError or ArtefactError for a model that is not there or was altered.
    """
    from kopt.models.registry import Registry
    from kopt.models.shipped import load_shipped, shipped_digests

    if model == SHIPPED or (model == CHAMPION and not _has_champion(name, settings)):
        loaded = load_shipped(name)
        loaded.version = ModelVersion(name, SHIPPED, shipped_digests()[name])
        return loaded
    if settings is None:
        raise ValueError("a model of the registry needs settings that say where the registry is")
    return Registry(settings).load(name, model)


def _has_champion(name: str, settings: Settings | None) -> bool:
    """Looking does not make a registry."""
    if settings is None or not (settings.mlflow_uri or (settings.home / "mlflow.db").exists()):
        return False
    from kopt.models.registry import Registry, RegistryError

    try:
        Registry(settings).get(name, CHAMPION)
    except RegistryError:
        return False
    return True
