"""The run-time predictor of this machine, for commands, notebooks and the endpoint."""

from kopt.core.settings import Settings
from kopt.models.registry.loading import load_as
from kopt.models.runtime.predictor import RunTimePredictor


def load_run_time(model: str = "champion", settings: Settings | None = None) -> RunTimePredictor:
    """The run-time predictor that ``model`` names, verified."""
    return load_as(RunTimePredictor, "runtime", model, settings)
