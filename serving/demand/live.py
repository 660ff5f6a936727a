"""Demand that is pushed to the endpoint: buckets into the store, and histories by name for the answers."""

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kopt.data.demand.table import GRID_S, DemandSeries
from kopt.features.live import KEPT_S, LiveHistories, TooManyServicesError
from kopt.features.rows import FeatureStoreError
from kopt.serving.contract.live_answers import PushedDemand
from kopt.serving.contract.schemas import PushRequest
from kopt.serving.demand.feature_lookup import KEEP_S
from kopt.serving.demand.histories import LARGEST_AMOUNT
from kopt.serving.demand.materialiser import Materialiser, Write
from kopt.serving.http.problems import Problem, invalid

_LOG = logging.getLogger(__name__)
CLOCK_SKEW_S = 30.0
"""A bucket that ends this little after now counts as ended: clocks differ."""
OLDEST_S = KEPT_S + 86_400
"""What is older than what is kept is dropped; what is much older is a mistake."""
_MOST_READ = 2_000
"""Histories kept in a replica, 32 KiB each."""


@dataclass(frozen=True)
class _Read:
    series: DemandSeries | None
    at_s: float


class LiveDemand:
    """Opens the histories on first use. ``write_online`` puts the newest buckets of series into the online store, and
    ``observe`` sees what was pushed; both are done in the background."""

    def __init__(
        self,
        open_histories: Callable[[], LiveHistories],
        write_online: Write | None = None,
        clock: Callable[[], float] = time.time,
        observe: Write | None = None,
    ) -> None:
        self._open, self._clock = open_histories, clock
        self._followers = [Materialiser(each) for each in (write_online, observe) if each is not None]
        self._histories: LiveHistories | None = None
        self._read: OrderedDict[str, _Read] = OrderedDict()
        self._lock, self._reading = threading.Lock(), threading.Lock()

    def at_hand(self, names: Sequence[str]) -> bool:
        """Whether all names were read a moment ago, with a history or without."""
        return all(self._fresh(name) is not None for name in names)

    def series(self, names: Sequence[str]) -> dict[str, DemandSeries]:
        """The histories of those that have one; blocks where they are not at hand. Raises FeatureStoreError."""
        reads = {name: read for name in names if (read := self._fresh(name)) is not None}
        if missing := [name for name in names if name not in reads]:
            result, now = self._opened().series(missing), time.monotonic()
            reads |= {name: _Read(result.get(name), now) for name in missing}
            self._keep({name: reads[name] for name in missing})
        return {name: read.series for name, read in reads.items() if read.series is not None}

    def services(self) -> list[str]:
        """All that are kept; blocks. Raises FeatureStoreError."""
        return self._opened().services(self._clock() - KEPT_S)

    def histories(self, names: Sequence[str]) -> dict[str, DemandSeries]:
        """As ``series``, always from the store; what is kept at hand stays as it is."""
        return self._opened().series(names)

    def push(self, service: str, owner: str, request: PushRequest) -> PushedDemand:
        """Merges complete buckets, and has the newest materialised; blocks. Raises Problem."""
        buckets = self._buckets(request)
        value = _amounts(request)
        try:
            merged = self._opened().merge(service, owner, buckets, value)
        except TooManyServicesError as error:
            raise Problem(429, f"{error}.", headers={"retry-after": "300"}) from error
        except FeatureStoreError as error:
            _LOG.warning("demand of %r cannot be kept: %s", service, error)
            text = "The store of live demand does not answer; push again."
            raise Problem(503, text, headers={"retry-after": "2"}) from error
        if merged.series is None:
            return PushedDemand(service, 0, 0, None)
        self._keep({service: _Read(merged.series, time.monotonic())})
        newest_s = merged.series.start_s + len(merged.series) * GRID_S
        finite_buckets = int(np.isfinite(merged.series.value).sum())
        for follower in self._followers:
            follower.put(merged.series)
        return PushedDemand(service, merged.changed, finite_buckets, newest_s)

    def close(self) -> None:
        for follower in self._followers:
            follower.stop()
        with self._lock:
            if self._histories is not None:
                self._histories.close()

    def _buckets(self, request: PushRequest) -> NDArray[np.int64]:
        times, now_s = np.array(request.t, dtype=np.float64), self._clock()
        if len(request.value) != len(times):
            raise invalid("value", f"has {len(request.value)} items, t has {len(times)}")
        for wrong, what in (
            (np.flatnonzero(times % GRID_S != 0), f"is no multiple of {GRID_S} s: send whole buckets by their start"),
            (np.flatnonzero(np.diff(times, prepend=-np.inf) <= 0), "is not after the time before it"),
            (np.flatnonzero(times + GRID_S > now_s + CLOCK_SKEW_S), "is a bucket that has not ended yet"),
            (np.flatnonzero(times < now_s - OLDEST_S), f"is older than {OLDEST_S // 86_400} days"),
        ):
            if len(wrong):
                raise invalid(f"t.{int(wrong[0])}", what)
        return (times // GRID_S).astype(np.int64)

    def _fresh(self, name: str) -> _Read | None:
        read = self._read.get(name)
        return read if read is not None and time.monotonic() - read.at_s <= KEEP_S else None

    def _keep(self, reads: dict[str, _Read]) -> None:
        with self._reading:
            self._read.update(reads)
            while len(self._read) > _MOST_READ:
                self._read.popitem(last=False)

    def _opened(self) -> LiveHistories:
        with self._lock:
            if self._histories is None:
                self._histories = self._open()
            return self._histories


def _amounts(request: PushRequest) -> NDArray[np.float64]:
    value = np.array(request.value, dtype=np.float64)
    # NaN passes both comparisons: it is unknown.
    wrong = np.flatnonzero((value < 0) | (value > LARGEST_AMOUNT))
    if len(wrong):
        raise invalid(f"value.{int(wrong[0])}", "a demand is not negative, not infinite and at most 1e15")
    return value
