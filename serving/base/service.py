"""What the services of all predictors have in common, and what an endpoint knows of each."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from fastapi import FastAPI
from pydantic import BaseModel

from kopt.core.prediction import ModelVersion
from kopt.core.reason import Reason
from kopt.core.settings import Settings
from kopt.models.registry.aliases import CHALLENGER
from kopt.serving.base.canary import Canary
from kopt.serving.base.model_slot import M, ModelSource, Slot
from kopt.serving.http.auth import Reviewer
from kopt.serving.http.metrics import EndpointMetrics

S = TypeVar("S", bound="PredictorService[Any]")
REFRESH_S = 2.0
"""How often a replica looks at the registry's aliases."""
MOST_AT_ONCE = 64


class VersionMetrics(Protocol):
    """Counts which version of a predictor answers."""

    def swapped(self, alias: str, before: ModelVersion | None, now: ModelVersion | None) -> None:
        """Another version stands behind an alias from now on."""


class Compared(Protocol):
    """Answers beside what was measured later."""

    def refresh(self) -> None:
        """Read what all replicas have recorded (blocks)."""

    def report(self, owner: str | None) -> list[dict[str, Any]]:
        """Its entries of ``/v1/health/predictors``, of one owner or of all."""
        ...

    def drift(self, role: str) -> Reason | None:
        """Why the newest version of a role cannot be trusted now."""
        ...

    def close(self) -> None: ...


class PredictorService(Generic[M]):
    """Answers one predictor's questions with the model in ``slot``. One per replica.

    A subclass adds its questions, and overrides ``start`` and ``close`` where it holds more than the slot.
    """

    required: ClassVar[bool] = False
    """Whether an endpoint is only ready with this model. It is loaded before the endpoint has started, the others
    after that: the first answer must not wait for a second model."""
    refresh_rounds: ClassVar[int] = 5
    """Rounds of the endpoint between two looks at the aliases; most of them rarely move."""

    def __init__(
        self,
        slot: Slot[M],
        metrics: EndpointMetrics,
        versions: VersionMetrics,
        challenger: Slot[M] | None = None,
    ) -> None:
        self.slot, self.challenger = slot, challenger
        self._metrics, self._versions = metrics, versions
        self.canary: Canary[M] = Canary(slot.name, challenger, metrics)

    def model_for(self, key: Callable[[], str]) -> M | None:
        """The model that answers a question: the challenger for its share of keys, else the champion."""
        return self.canary.pick(key) or self.slot.current

    @property
    def drift(self) -> Reason | None:
        """Why what the challenger answers cannot be trusted now, by what was measured."""
        return None if self.compared is None else self.compared.drift(CHALLENGER)

    @property
    def compared(self) -> Compared | None:
        """None where no measurements of its answers reach the endpoint."""
        return None

    @property
    def slots(self) -> tuple[Slot[Any], ...]:
        """The slots whose aliases are followed. The first one answers callers, others are only compared with it."""
        return (self.slot,) if self.challenger is None else (self.slot, self.challenger)

    @property
    def models(self) -> dict[str, M]:
        """The models that are loaded, by their alias: champion first."""
        return {slot.alias: slot.current for slot in self.slots if slot.current is not None}

    def start(self) -> None:
        """Start background work; must return at once."""

    def close(self) -> None:
        """Finish what is under way and let go of files."""
        if self.compared is not None:
            self.compared.close()

    def refresh(self) -> None:
        """Follow the aliases once (blocks: registry and disk)."""
        for slot in self.slots:
            before = slot.version
            if slot.refresh():
                self._versions.swapped(slot.alias, before, slot.version)
            self._metrics.followed(slot.name, slot.alias, refused=slot.refuses)
        if self.compared is not None:
            self.compared.refresh()
        self.canary.refresh(self.drift)

    async def advice(self, only_of: str | None) -> Mapping[str, list[Any]]:
        """Its share of ``/v1/recommendations``, by key; of one caller, ``only_of``, or of all."""
        return {}


@dataclass(frozen=True)
class Parts:
    """What tests and embedders replace; the defaults are the registry and stores that the settings name."""

    source: ModelSource | None = None
    features: object = None
    """``StoredFeatures`` of demand."""
    run_features: object = None
    """``RunFeatures``; where only ``features`` is given there are none."""
    refresh_s: float = REFRESH_S
    most_at_once: int = MOST_AT_ONCE
    reviewer: Reviewer | None = None
    shipped: Mapping[str, Callable[[], Any]] = field(default_factory=dict)
    """Predictor → loads what answers while the registry has no champion of it."""


@dataclass(frozen=True)
class Assembly:
    """What a service is put together from. ``promoted`` gives only models whose promotion is proved, ``source`` any."""

    settings: Settings
    source: ModelSource
    promoted: ModelSource
    metrics: EndpointMetrics
    parts: Parts


@dataclass(frozen=True)
class ServiceSpec(Generic[S]):
    """One predictor at the endpoint, ``kopt.serving.NAME.spec:SERVICE``."""

    name: str
    service: type[S]
    assemble: Callable[[Assembly], S]
    routes: Callable[[FastAPI, Callable[[], S]], None]
    """Adds its routes to the application; the function given gives the service or raises Problem 503."""
    absent: str
    """What an endpoint without this service answers."""
    requests: tuple[type[BaseModel], ...]
    """Bodies that the routes read for themselves, for the OpenAPI document."""
    answer: Any = Mapping
    """What the client's method of the predictor's name returns, where it has one; ``ask`` gives the document."""
