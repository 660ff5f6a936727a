"""The model that a replica answers with: loaded beside the old one, checked, then swapped in one step."""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from kopt.core.prediction import ModelVersion, Prediction
from kopt.core.reason import Reason
from kopt.data.demand.table import GRID_S, DemandSeries
from kopt.models.registry import NotRegisteredError, RegisteredModel, RegistryError
from kopt.serving.wire import DEFAULT_HORIZONS_S, DEFAULT_QUANTILES

_LOG = logging.getLogger(__name__)
_TRY_AGAIN_S = 60.0


class DemandModel(Protocol):
    """What serving needs of a demand predictor; ``calibration`` is a SeriesMemory that it keeps up to date."""

    version: ModelVersion

    def predict_rows(self, features: NDArray[np.float64], quantiles: Sequence[float]) -> NDArray[np.float64]: ...

    def forecast(
        self, series: DemandSeries, horizons_s: Sequence[int], quantiles: Sequence[float], *,
        calibration: Any = None, now_s: float | None = None,
    ) -> tuple[Prediction, ...]: ...  # fmt: skip


class ModelSource(Protocol):
    """What serving needs of the registry; ``load`` verifies signature and digest."""

    def resolve(self, name: str, alias: str) -> RegisteredModel: ...

    def load(self, name: str, version: str) -> Any: ...

    def list(self, name: str) -> tuple[RegisteredModel, ...]: ...


@dataclass(frozen=True)
class _Refused:
    version: str
    digest: str
    at_s: float


class ModelSlot:
    """Holds the version behind one alias. ``current`` is replaced whole, so a request sees one model or the other.

    ``refresh`` blocks (it asks the registry and reads files) and belongs on a background thread. A version that
    cannot be loaded leaves the old one serving and is tried again a minute later; ``trouble`` says so.
    """

    def __init__(self, source: ModelSource, name: str = "demand", alias: str = "champion",
                 clock: Callable[[], float] = time.monotonic) -> None:  # fmt: skip
        self.name, self.alias = name, alias
        self.current: DemandModel | None = None
        self.trouble: Reason | None = None
        self._source, self._clock = source, clock
        self._refused: _Refused | None = None
        self._lock = threading.Lock()

    @property
    def version(self) -> ModelVersion | None:
        return None if self.current is None else self.current.version

    def refresh(self) -> bool:
        """Look at the alias and load what it points to, if that is new. Returns whether the model changed."""
        with self._lock:
            try:
                wanted = self._source.resolve(self.name, self.alias)
            except NotRegisteredError:
                return self._absent()
            except RegistryError as error:
                self.trouble = Reason("REGISTRY_DOWN", f"The registry does not answer: {error}")
                return False
            if self._serving(wanted):
                self.trouble = None
                return False
            return not self._recently_refused(wanted) and self._swap(wanted)

    def _absent(self) -> bool:
        self.trouble = Reason(
            "NO_MODEL", f"The registry has no {self.alias} of {self.name}; run `kopt train {self.name}`."
        )
        # A challenger that was promoted or withdrawn must stop shadowing; a champion keeps serving.
        changed = self.alias != "champion" and self.current is not None
        if changed:
            self.current, self.trouble = None, None
        return changed

    def _serving(self, wanted: RegisteredModel) -> bool:
        version = self.version
        return version is not None and (version.version, version.digest) == (wanted.version, wanted.digest)

    def _recently_refused(self, wanted: RegisteredModel) -> bool:
        refused = self._refused
        same = refused is not None and (refused.version, refused.digest) == (wanted.version, wanted.digest)
        return same and refused is not None and self._clock() - refused.at_s < _TRY_AGAIN_S

    def _swap(self, wanted: RegisteredModel) -> bool:
        try:
            model: DemandModel = self._source.load(self.name, wanted.version)
            warm_up(model)
        except Exception as error:  # noqa: BLE001 - edge: whatever a broken artefact does, the old model serves on
            _LOG.exception("model %s version %s is refused", self.name, wanted.version)
            self._refused = _Refused(wanted.version, wanted.digest, self._clock())
            text = f"{self.name} version {wanted.version} ({self.alias}) is refused: {error}"
            self.trouble = Reason("MODEL_REFUSED", text[:500], {"version": wanted.version})
            return False
        self.current, self.trouble, self._refused = model, None, None
        _LOG.info("serving %s version %s", self.name, wanted.version)
        return True


def warm_up(model: DemandModel) -> None:
    """One forecast of a made-up day, so that the first caller does not pay for lazy set-up and a model that cannot
    answer never serves. Raises ValueError for a model that does not answer with finite numbers."""
    day = DemandSeries("warm-up", 0.0, GRID_S, 100.0 + 50.0 * np.sin(np.arange(2 * 288) / 288 * 2 * np.pi))
    for prediction in model.forecast(day, DEFAULT_HORIZONS_S, DEFAULT_QUANTILES):
        if prediction.value is not None and not np.isfinite([prediction.value, *prediction.quantiles.values()]).all():
            raise ValueError("its answers are not finite")
