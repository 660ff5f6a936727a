"""The run-time predictor of this machine, for commands, notebooks and the endpoint."""

from kopt.core.settings import Settings
from kopt.models.registry.loading import load_predictor
from kopt.models.runtime.predictor import RunTimePredictor


def load_run_time(model: str = "champion", settings: Settings | None = None) -> RunTimePredictor:
    """The run-time predictor that ``model`` names, verified."""
    predictor = load_predictor("runtime", model, settings)
    if not isinstance(predictor, RunTimePredictor):
        raise TypeError(f"{predictor} is not a run-time predictor")
    return predictor
