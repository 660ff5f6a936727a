"""The services of an endpoint: one per predictor, found by name in the list of predictors."""

from typing import Any

from kopt.models.predictors import PREDICTORS, load_part
from kopt.serving.base.service import ServiceSpec

SERVICES: tuple[ServiceSpec[Any], ...] = tuple(
    load_part("serving", predictor.name, "spec:SERVICE") for predictor in PREDICTORS
)
