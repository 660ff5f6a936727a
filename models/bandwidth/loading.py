"""The bandwidth predictor of this machine, for commands, notebooks and the endpoint."""

from kopt.core.settings import Settings
from kopt.models.bandwidth.predictor import BandwidthPredictor
from kopt.models.registry.loading import load_predictor


def load_bandwidth(model: str = "champion", settings: Settings | None = None) -> BandwidthPredictor:
    """The bandwidth predictor that ``model`` names, verified."""
    predictor = load_predictor("bandwidth", model, settings)
    if not isinstance(predictor, BandwidthPredictor):
        raise TypeError(f"{predictor} is not a bandwidth predictor")
    return predictor
