"""The list of predictors. A new predictor is one line here."""

from collections.abc import Mapping
from importlib import import_module
from types import MappingProxyType

from kopt.models.base import Predictor

PREDICTORS: Mapping[str, str] = MappingProxyType(
    {
        "bandwidth": "kopt.models.bandwidth.predictor:BandwidthPredictor",
        "checkpoint": "kopt.models.checkpoint.predictor:CheckpointPredictor",
        "demand": "kopt.models.demand.predictor:DemandPredictor",
        "sizing": "kopt.models.sizing.predictor:SizingPredictor",
    }
)
"""Name in the registry and on the command line → module and class, imported only when asked for."""


def predictor_class(name: str, predictors: Mapping[str, str] | None = None) -> type[Predictor]:
    """The class of a predictor, of ``PREDICTORS`` by default. Raises KeyError with the names that exist."""
    predictors = PREDICTORS if predictors is None else predictors
    if name not in predictors:
        raise KeyError(f"no predictor {name!r}; there are {', '.join(sorted(predictors))}")
    module, _, attribute = predictors[name].partition(":")
    found: type[Predictor] = getattr(import_module(module), attribute)
    return found
