"""The bandwidth model that the page of topologies asks: small enough to answer in this very process."""

import logging
import threading
import time
from collections.abc import Callable

from kopt.core.settings import Settings
from kopt.models.bandwidth.loading import load_bandwidth
from kopt.models.bandwidth.predictor import BandwidthPredictor
from kopt.models.registry.artifact import ArtefactError
from kopt.models.registry.registry import RegistryError

LOG = logging.getLogger(__name__)
LASTS_S = 300.0
"""After so long the registry is asked again whether another version is champion."""


class BandwidthModel:
    """The champion, else the model in the package; kept for ``LASTS_S``. May be asked from several threads."""

    def __init__(
        self,
        settings: Settings,
        load: Callable[[str, Settings], BandwidthPredictor] = load_bandwidth,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings, self._load, self._clock = settings, load, clock
        self._lock = threading.Lock()
        self._current: tuple[float, BandwidthPredictor | str] | None = None

    def current(self) -> BandwidthPredictor | str:
        """The model; a sentence where none can be loaded."""
        with self._lock:
            if self._current is None or self._clock() - self._current[0] > LASTS_S:
                self._current = (self._clock(), self._loaded())
            return self._current[1]

    def _loaded(self) -> BandwidthPredictor | str:
        try:
            return self._load("champion", self._settings)
        except (ArtefactError, RegistryError, OSError, ValueError, TypeError) as error:
            LOG.warning("no bandwidth model: %s", error)
            return f"Nothing is predicted, as no bandwidth model can be loaded: {error}"
