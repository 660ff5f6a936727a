"""Demand forecasts become forecasts of whole GPUs. Standard library only: the client does it too."""

from dataclasses import replace

from kopt.core.prediction import Prediction
from kopt.core.reason import Reason
from kopt.policies.lending.policy import LendingSettings, ServiceDemand, gpus_for, provision_gpus

UNIT = "GPUs"


def gpus_prediction(
    demand: Prediction, capacity_per_gpu: float, recent_max: float | None, settings: LendingSettings
) -> Prediction:
    """Whole GPUs for a forecast of demand; a refused forecast is a refused number of GPUs.

    ``capacity_per_gpu`` and ``recent_max`` (largest of the last half hour) are in units per bucket of ``demand``. The
    quantiles are the demand's own; the reason ``PROVISION`` says what ``max(reactive, forecast)`` asks for.
    """
    if demand.value is None or demand.low is None or demand.high is None:
        return replace(demand, unit=UNIT)
    service = ServiceDemand("", recent_max or 0.0, capacity_per_gpu, demand.quantiles, minimum_gpus=0)
    provision = provision_gpus([service], settings)
    reactive = gpus_for(settings.reactive_margin * (recent_max or 0.0), capacity_per_gpu)
    rule = "the reactive rule" if provision == reactive else f"the forecast at quantile {settings.quantile:g}"
    why = Reason(
        "PROVISION",
        f"{provision} GPUs to keep by {rule} ({settings.reactive_margin:g} × recent maximum asks for {reactive}), "
        f"{capacity_per_gpu:g} {demand.unit} per GPU and bucket.",
        {"provision_gpus": provision, "reactive_gpus": reactive, "capacity_per_gpu": capacity_per_gpu},
    )
    return replace(
        demand,
        value=float(gpus_for(demand.value, capacity_per_gpu)),
        low=float(gpus_for(demand.low, capacity_per_gpu)),
        high=float(gpus_for(demand.high, capacity_per_gpu)),
        unit=UNIT,
        quantiles={q: float(gpus_for(amount, capacity_per_gpu)) for q, amount in demand.quantiles.items()},
        reasons=(why, *demand.reasons[:1]),
    )
