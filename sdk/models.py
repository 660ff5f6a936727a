"""``kopt.load_model``: a registered model by the address that MLflow's pages show."""

import re
from typing import TYPE_CHECKING

from kopt.core.settings import Settings

if TYPE_CHECKING:
    from kopt.models.base import Predictor

_ADDRESS = re.compile(r"models:/([a-z]+)(?:@([A-Za-z0-9_-]+)|/([0-9]+))")


def load_model(address: str, *, settings: Settings) -> "Predictor":
    """The predictor at ``models:/NAME@ALIAS`` or ``models:/NAME/VERSION``, fetched and verified.

    Nothing of it is executed: files are read by the predictor's own loader, and only if a trusted key has signed them.
    Raises ValueError for an address of another form, RegistryError for a model that is not there or not trusted.

    Example::

        model = kopt.load_model("models:/demand@champion")
    """
    from kopt.models.registry.registry import Registry

    match = _ADDRESS.fullmatch(address)
    if match is None:
        raise ValueError(f"{address!r} is no model; write models:/demand@champion or models:/demand/3")
    name, alias, version = match.groups()
    return Registry(settings).load(name, alias or version)
