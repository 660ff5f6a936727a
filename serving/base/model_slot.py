"""The model that a replica answers with: loaded beside the old one, checked, then swapped in one step."""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from kopt.core.prediction import ModelVersion, Prediction
from kopt.core.reason import Reason
from kopt.data.demand.table import GRID_S, DemandSeries
from kopt.models.registry.registry import CHAMPION, NotRegisteredError, RegisteredModel, RegistryError
from kopt.serving.contract.common import DEFAULT_HORIZONS_S, DEFAULT_QUANTILES

_LOG = logging.getLogger(__name__)
REGISTRY_DOWN, MODEL_REFUSED = "REGISTRY_DOWN", "MODEL_REFUSED"
_TRY_AGAIN_S = 60.0


class DemandModel(Protocol):
    """What serving needs of a demand predictor; ``calibration`` is a SeriesMemory that it keeps up to date, and
    ``memories`` gives one for each series as the first forecast would leave it."""

    version: ModelVersion

    def predict_rows(self, features: NDArray[np.float64], quantiles: Sequence[float]) -> NDArray[np.float64]: ...

    def forecast(
        self,
        series: DemandSeries,
        horizons_s: Sequence[int],
        quantiles: Sequence[float],
        *,
        calibration: Any = None,
        now_s: float | None = None,
    ) -> tuple[Prediction, ...]: ...

    def memories(self, series: Sequence[DemandSeries]) -> Sequence[Any]: ...


class Versioned(Protocol):
    """What every predictor has that a slot holds."""

    version: ModelVersion


M = TypeVar("M", bound=Versioned)


class ModelSource(Protocol):
    """What serving needs of the registry; ``load`` verifies signature and digest."""

    def resolve(self, name: str, alias: str) -> RegisteredModel: ...

    def load(self, name: str, version: str) -> Any: ...

    def list(self, name: str) -> tuple[RegisteredModel, ...]: ...


@runtime_checkable
class SpareSource(Protocol):
    """A source that knows what may answer while the wanted version is refused."""

    def spare(self, name: str) -> Any: ...


@runtime_checkable
class CanarySource(Protocol):
    """A source that knows which share of questions a challenger may answer."""

    def canary_percent(self, model: RegisteredModel) -> int: ...


@dataclass(frozen=True)
class _Refused:
    version: str
    digest: str
    at_s: float


class Slot(Generic[M]):
    """Holds the version behind one alias. ``current`` is replaced whole, so a request sees one model or the other.

    ``refresh`` blocks (it asks the registry and reads files) and belongs on a background thread. A version that
    cannot be loaded, or that ``warm_up`` raises for, leaves the old one serving and is tried again a minute later;
    ``error`` says so. ``default`` loads what serves while the registry gives none; where
    a version is refused before anything was served, the source's ``spare`` comes first. ``prepare`` is called with a
    version that is about to replace another one, which answers until it returns; what it raises is logged.
    """

    def __init__(
        self,
        source: ModelSource,
        name: str,
        alias: str,
        *,
        warm_up: Callable[[M], None],
        default: Callable[[], M] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name, self.alias = name, alias
        self.current: M | None = None
        self.error: Reason | None = None
        self.prepare: Callable[[M], object] | None = None
        self.canary_percent = 0
        """Of questions that the model may answer although it is not the champion."""
        self._source, self._warm_up, self._default, self._clock = source, warm_up, default, clock
        self._refused: _Refused | None = None
        self._lock = threading.Lock()

    @property
    def version(self) -> ModelVersion | None:
        return None if self.current is None else self.current.version

    @property
    def refuses(self) -> bool:
        """Whether the version of the alias was refused."""
        return self.error is not None and self.error.code == MODEL_REFUSED

    def refresh(self) -> bool:
        """Look at the alias and load what it points to, if that is new. Returns whether the model changed."""
        with self._lock:
            try:
                wanted = self._source.resolve(self.name, self.alias)
                changed = self._follow(wanted)
                self.canary_percent = self._allowed_percent(wanted)
                return changed
            except NotRegisteredError:
                self.canary_percent = 0
                return self._absent()
            except RegistryError as error:
                self.error = registry_down(error)
                return self._use_default()

    def _follow(self, wanted: RegisteredModel) -> bool:
        if self._serving(wanted):
            self.error = None
            return False
        if self._recently_refused(wanted):
            return self._use_default()
        return self._swap(wanted) or self._use_spare() or self._use_default()

    def _allowed_percent(self, wanted: RegisteredModel) -> int:
        if self.alias == CHAMPION or not self._serving(wanted) or not isinstance(self._source, CanarySource):
            return 0
        return self._source.canary_percent(wanted)

    def _absent(self) -> bool:
        if self._default is not None:
            self.error = None
            return self._use_default()
        self.error = Reason(
            "NO_MODEL", f"The registry has no {self.alias} of {self.name}; run `kopt train {self.name}`."
        )
        # A challenger that was promoted or withdrawn must stop shadowing; a champion keeps serving.
        changed = self.alias != "champion" and self.current is not None
        if changed:
            self.current, self.error = None, None
        return changed

    def _use_default(self) -> bool:
        """Serve the default where no model serves yet."""
        if self._default is None or self.current is not None:
            return False
        try:
            model = self._default()
            self._warm_up(model)
        except Exception as error:  # noqa: BLE001 - edge: a broken package must not end the thread that follows aliases
            _LOG.exception("the default model of %s is refused", self.name)
            self.error = Reason(MODEL_REFUSED, f"The default model of {self.name} is refused: {error}"[:500])
            return False
        self.current = model
        _LOG.info("serving the default model of %s", self.name)
        return True

    def _use_spare(self) -> bool:
        """Serve the source's spare where no model serves yet; ``error`` still says why the wanted version does not."""
        if self.current is not None or self.alias != CHAMPION or not isinstance(self._source, SpareSource):
            return False
        try:
            model: M = self._source.spare(self.name)
            self._warm_up(model)
        except Exception as error:  # noqa: BLE001 - edge: there may be no spare, and then the default serves
            _LOG.warning("there is nothing to serve instead of the refused %s: %s", self.name, error)
            return False
        self.current = model
        _LOG.warning("serving %s version %s instead", self.name, model.version.version)
        return True

    def _serving(self, wanted: RegisteredModel) -> bool:
        version = self.version
        return version is not None and (version.version, version.digest) == (wanted.version, wanted.digest)

    def _recently_refused(self, wanted: RegisteredModel) -> bool:
        refused = self._refused
        same = refused is not None and (refused.version, refused.digest) == (wanted.version, wanted.digest)
        return same and refused is not None and self._clock() - refused.at_s < _TRY_AGAIN_S

    def _swap(self, wanted: RegisteredModel) -> bool:
        try:
            model: M = self._source.load(self.name, wanted.version)
            self._warm_up(model)
        except Exception as error:  # noqa: BLE001 - edge: whatever a broken artefact does, the old model serves on
            _LOG.exception("model %s version %s is refused", self.name, wanted.version)
            self._refused = _Refused(wanted.version, wanted.digest, self._clock())
            text = f"{self.name} version {wanted.version} ({self.alias}) is refused: {error}"
            self.error = Reason(MODEL_REFUSED, text[:500], {"version": wanted.version})
            return False
        self._prepare(model)
        self.current, self.error, self._refused = model, None, None
        _LOG.info("serving %s version %s", self.name, wanted.version)
        return True

    def _prepare(self, model: M) -> None:
        if self.prepare is None or self.current is None:
            return
        try:
            self.prepare(model)
        except Exception:  # noqa: BLE001 - edge: without it the first answers of the model only take longer
            _LOG.exception("%s could not be prepared", self.name)


class ModelSlot(Slot[DemandModel]):
    """The demand predictor's slot."""

    def __init__(
        self,
        source: ModelSource,
        name: str = "demand",
        alias: str = "champion",
        default: Callable[[], DemandModel] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(source, name, alias, warm_up=warm_up, default=default, clock=clock)


def registry_down(error: RegistryError) -> Reason:
    """Why aliases are not followed now; what is loaded serves on."""
    return Reason(REGISTRY_DOWN, f"The registry does not answer: {error}")


def warm_up(model: DemandModel) -> None:
    """One forecast of a made-up day, so that the first caller does not pay for lazy set-up and a model that cannot
    answer never serves. Raises ValueError for a model that does not answer with finite numbers."""
    day = DemandSeries("warm-up", 0.0, GRID_S, 100.0 + 50.0 * np.sin(np.arange(2 * 288) / 288 * 2 * np.pi))
    for prediction in model.forecast(day, DEFAULT_HORIZONS_S, DEFAULT_QUANTILES):
        if prediction.value is not None and not np.isfinite([prediction.value, *prediction.quantiles.values()]).all():
            raise ValueError("its answers are not finite")
