"""A challenger on trial with some of the questions: which ones, and when it stops answering.

A question is always answered by the same model: its hash decides. The share is a signed statement on the challenger's
version, so that nobody who reaches the registry alone can let it answer. It stops on this replica when it fails too
often, and as long as what it answered is measured to be wrong; a question on which it fails goes to the champion.
"""

import hashlib
import logging
from collections import deque
from collections.abc import Callable
from typing import Generic

from kopt.core.prediction import ModelVersion
from kopt.core.reason import Reason
from kopt.serving.base.model_slot import M, Slot
from kopt.serving.http.metrics import EndpointMetrics

_LOG = logging.getLogger(__name__)
_WINDOW, _LEAST_FAILURES, _MOST_FAILING = 200, 3, 0.02
_PARTS = 10_000


class Canary(Generic[M]):
    """Of one predictor. ``stopped`` says why the challenger answers nobody, though it may."""

    def __init__(self, predictor: str, challenger: Slot[M] | None, metrics: EndpointMetrics) -> None:
        self._predictor, self._challenger, self._metrics = predictor, challenger, metrics
        self._outcomes: deque[bool] = deque(maxlen=_WINDOW)
        self._trial: tuple[ModelVersion, int] | None = None
        self._failing: Reason | None = None
        self._drift: Reason | None = None

    @property
    def percent(self) -> int:
        """Of the questions that the challenger answers now."""
        return 0 if self._trial is None or self.stopped is not None else self._trial[1]

    @property
    def stopped(self) -> Reason | None:
        return self._failing or self._drift if self._trial is not None else None

    def refresh(self, drift: Reason | None) -> None:
        """Follow the challenger's share; ``drift`` says why its answers cannot be trusted now."""
        slot = self._challenger
        version = None if slot is None else slot.version
        trial = (version, slot.canary_percent) if slot is not None and version is not None else None
        trial = None if trial is None or not trial[1] else trial
        if trial != self._trial:
            # A new share, or a new version, is a new trial.
            self._trial, self._failing = trial, None
            self._outcomes.clear()
        self._drift = drift
        self._show()

    def pick(self, key: Callable[[], str]) -> M | None:
        """The challenger for its share of keys; ``key`` is asked while there is a trial alone."""
        trial, slot = self._trial, self._challenger
        if trial is None or slot is None or self.stopped is not None:
            return None
        model = slot.current
        if model is None or model.version != trial[0]:
            return None
        digest = hashlib.sha256(f"{trial[0].digest}\0{key()}".encode(errors="surrogatepass")).digest()
        return model if int.from_bytes(digest[:8]) % _PARTS < trial[1] * _PARTS // 100 else None

    def answered(self, model: M) -> None:
        """A model has answered."""
        if self._is_on_trial(model):
            self._outcomes.append(True)
            self._metrics.canary_answers.labels(self._predictor, "answered").inc()

    def failed(self, model: M) -> bool:
        """A model has not answered, or not in time; returns whether the champion can be asked instead."""
        if not self._is_on_trial(model):
            return False
        self._outcomes.append(False)
        self._metrics.canary_answers.labels(self._predictor, "failed").inc()
        failures = self._outcomes.count(False)
        if self._failing is None and failures >= max(_LEAST_FAILURES, _MOST_FAILING * len(self._outcomes)):
            text = (
                f"The challenger of {self._predictor} (version {model.version.version}) failed on {failures} of its "
                f"last {len(self._outcomes)} questions: the champion answers all of them here."
            )
            self._failing = Reason("CANARY_STOPPED", text, {"failures": failures, "questions": len(self._outcomes)})
            _LOG.warning("%s", text)
            self._show()
        return True

    def _show(self) -> None:
        self._metrics.canary(self._predictor, self.percent, stopped=self.stopped is not None)

    def _is_on_trial(self, model: M) -> bool:
        return self._trial is not None and model.version == self._trial[0]
