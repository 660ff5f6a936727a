"""The bandwidth predictor of this machine, for commands, notebooks and the endpoint."""

from kopt.core.settings import Settings
from kopt.models.bandwidth.predictor import BandwidthPredictor
from kopt.models.registry.loading import load_as


def load_bandwidth(model: str = "champion", settings: Settings | None = None) -> BandwidthPredictor:
    """The bandwidth predictor that ``model`` names, verified."""
    return load_as(BandwidthPredictor, "bandwidth", model, settings)
