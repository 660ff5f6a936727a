"""The list of predictors. A new predictor is one line here.

Every layer keeps its part of a predictor in a folder of the predictor's name, and finds it from this list:

- ``kopt.models.NAME``: the model itself, and in ``shipped/`` the default one;
- ``kopt.training.NAME.recipe:RECIPE``: how it is trained;
- ``kopt.serving.NAME.spec:SERVICE``: how it answers at the endpoint;
- ``kopt.cli.training.NAME:COMMAND``: where ``kopt train NAME`` takes its data from, and what it shows.

``tests/conformance/test_predictors.py`` holds every line to that.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from kopt.models.base import Predictor


@dataclass(frozen=True)
class PredictorSpec:
    """``name`` in the registry and on the command line; ``predictor`` is module and class, imported when asked for."""

    name: str
    predictor: str
    answers: str
    """The question in a few words."""
    not_shipped: str = ""
    """Why the package has no default model; empty where it has one."""


PREDICTORS: tuple[PredictorSpec, ...] = (
    PredictorSpec("demand", "kopt.models.demand.predictor:DemandPredictor", "what services will need"),
    PredictorSpec("sizing", "kopt.models.sizing.predictor:SizingPredictor", "how much GPU memory a job needs"),
    PredictorSpec("checkpoint", "kopt.models.checkpoint.predictor:CheckpointPredictor", "what stopping a job loses"),
    PredictorSpec("bandwidth", "kopt.models.bandwidth.predictor:BandwidthPredictor", "what sets of GPUs reach"),
    PredictorSpec("runtime", "kopt.models.runtime.predictor:RunTimePredictor", "how long a job runs"),
)


def predictor_names() -> tuple[str, ...]:
    """All names, in the order of the alphabet."""
    return tuple(sorted(spec.name for spec in PREDICTORS))


def predictor_class(name: str, predictors: Mapping[str, str] | None = None) -> type[Predictor]:
    """The class of a predictor, of ``PREDICTORS`` by default. Raises KeyError with the names that exist."""
    if predictors is None:
        predictors = {spec.name: spec.predictor for spec in PREDICTORS}
    if name not in predictors:
        raise KeyError(f"no predictor {name!r}; there are {', '.join(sorted(predictors))}")
    result: type[Predictor] = load(predictors[name])
    return result


def load_part(layer: str, predictor: str, part: str) -> Any:
    """What a layer keeps of a predictor; ``part`` is module and attribute in its folder, such as ``recipe:RECIPE``."""
    return load(f"kopt.{layer}.{predictor}.{part}")


def load(reference: str) -> Any:
    """What ``module:attribute`` names."""
    module, _, attribute = reference.partition(":")
    return getattr(import_module(module), attribute)
