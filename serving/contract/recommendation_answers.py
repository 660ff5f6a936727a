"""The answer of ``/v1/recommendations``, declared once for the endpoint and its clients. Standard library only."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from kopt.serving.contract.common import SCHEMA, ModelOut, ReasonOut
from kopt.serving.contract.reading import read_answer
from kopt.serving.contract.size_advice import SizeAdvice
from kopt.serving.contract.sizing_answers import SizeAdviceOut

# Docstrings of these classes are published in docs/openapi.json, and their names are.


@dataclass(frozen=True)
class ActionOut:
    verb: str
    target: str
    amount: int
    unit: str


@dataclass(frozen=True)
class CurvePointOut:
    horizon_s: float
    provision_milli_gpu: int
    lendable_milli_gpu: int


@dataclass(frozen=True)
class RecommendationOut:
    """Lending advice for one pool: ``core.decision.Decision`` and the lendable GPUs over the horizons."""

    pool: str
    services: tuple[str, ...]
    policy: str
    mode: str
    actions: tuple[ActionOut, ...]
    reasons: tuple[ReasonOut, ...]
    models: tuple[ModelOut, ...]
    curve: tuple[CurvePointOut, ...]
    made_at_s: float
    fallback: bool


@dataclass(frozen=True, kw_only=True)
class RecommendationsResponse:
    schema: Literal["kopt/v1"] = SCHEMA
    recommendations: tuple[RecommendationOut, ...]
    sizes: tuple[SizeAdviceOut, ...] = ()

    @property
    def size_advice(self) -> tuple[SizeAdvice, ...]:
        """Newest first."""
        return tuple(size.advice for size in self.sizes)


def parse_recommendations(document: Mapping[str, Any]) -> RecommendationsResponse:
    """What ``/v1/recommendations`` says. Raises AnswerError for anything else."""
    return read_answer(RecommendationsResponse, "/v1/recommendations", document)
