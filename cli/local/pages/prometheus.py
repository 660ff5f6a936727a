"""The Prometheus of the pages, and how busy the GPUs of pods were by it, kept for as long as it hardly changes."""

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kopt.data.demand.prometheus import Server

_LOG = logging.getLogger(__name__)
Pod = tuple[str, str]
"""Namespace and name."""
TIMEOUT_S = 10.0
KEPT_S, FAILED_S = 600.0, 60.0
"""Ten more minutes tell nothing new of days and weeks; one that does not answer delays a page once a minute."""
_NOW_S = 600
"""Windows that end in the same ten minutes share their readings."""
_MOST_WINDOWS = 16


def prometheus_of(environ: Mapping[str, str]) -> "Callable[[], Server] | None":
    """Opens the Prometheus that the environment names, for one use; None where none is named."""
    url, token_file = environ.get("KOPT_PAGES_PROMETHEUS", ""), environ.get("KOPT_PAGES_PROMETHEUS_TOKEN_FILE", "")
    authority = environ.get("KOPT_PAGES_PROMETHEUS_CA_FILE", "")
    if not url:
        return None

    def opened() -> "Server":
        from kopt.data.demand.prometheus import Server

        # Read each time: tokens are renewed in their files.
        token = Path(token_file).read_text(encoding="utf-8").strip() if token_file else ""
        return Server(
            url, timeout_s=TIMEOUT_S, retries=0, token=token, authority=Path(authority) if authority else None
        )

    return opened


class PodActivities:
    """Share of time, 0 to 1, in which kernels ran on the GPUs of each pod. Blocks; one question at a time."""

    def __init__(self, server: "Callable[[], Server]", clock: Callable[[], float] = time.monotonic) -> None:
        self._server, self._clock, self._lock = server, clock, threading.Lock()
        self._kept: OrderedDict[tuple[int, int], tuple[float, Mapping[Pod, float] | None]] = OrderedDict()
        self.problem = ""
        """A sentence while it does not answer."""

    def __call__(self, start_ms: int, end_ms: int) -> Mapping[Pod, float] | None:
        """Of a window; None where nobody answers."""
        key = (end_ms - start_ms) // (_NOW_S * 1000), end_ms // (_NOW_S * 1000)
        with self._lock:
            until_s, activity = self._kept.get(key, (0.0, None))
            if self._clock() < until_s:
                return activity
            activity = self._read((end_ms - start_ms) / 1000, end_ms / 1000)
            self._kept[key] = self._clock() + (FAILED_S if activity is None else KEPT_S), activity
            while len(self._kept) > _MOST_WINDOWS:
                self._kept.popitem(last=False)
            return activity

    def _read(self, since_s: float, until_s: float) -> Mapping[Pod, float] | None:
        from kopt.data.gpu_use import read_gpu_use

        try:
            with self._server() as server:
                activity = read_gpu_use(server, since_s, now_s=until_s).activity
        except (ValueError, OSError) as error:
            self.problem = f"What pods held and did not use was not read: {error}"
            _LOG.warning("%s", self.problem)
            return None
        self.problem = ""
        return activity
