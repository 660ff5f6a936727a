"""The demand of the story's service: what Prometheus has of the days before, and clients that send requests now."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import numpy as np
from prometheus_server import RunningPrometheus

BUCKET_S, DAY_S = 300, 86_400
QUIET, SPIKE = 300, 3_000
"""Requests in five minutes."""
SPIKE_S = 2 * BUCKET_S
HISTORY_DAYS, SAMPLES_S = 10, 60
SPREAD = 0.03
SCRAPES = (
    "global: {scrape_interval: 1s}\nscrape_configs:\n- job_name: vllm\n  file_sd_configs:\n"
    "  - {files: [targets/*.json], refresh_interval: 2s}\n"
)


@dataclass(frozen=True)
class Demand:
    """Quiet but for ten minutes at the same time of each day; the next ones begin at ``spike_s`` (Unix seconds)."""

    spike_s: float

    def requests(self, at_s: float) -> int:
        """In the five minutes around this moment."""
        return SPIKE if (at_s - self.spike_s) % DAY_S < SPIKE_S else QUIET

    def history(
        self, end_s: float, days: int = HISTORY_DAYS, every_s: int = SAMPLES_S
    ) -> Iterator[tuple[float, float]]:
        """Samples of a counter up to ``end_s``: when, and how many requests there had been."""
        noise, count = np.random.default_rng(int(end_s)), 0.0
        begin_s = end_s - days * DAY_S
        for bucket_s in np.arange(begin_s, end_s, BUCKET_S):
            requests = self.requests(bucket_s) * noise.normal(1.0, SPREAD)
            for offset_s in range(0, BUCKET_S, every_s):
                yield bucket_s + offset_s, count + requests * offset_s / BUCKET_S
            count += requests
        yield end_s, count


@contextmanager
def prometheus(folder: Path, demand: Demand, namespace: str, service: str) -> Iterator[str]:
    """The address of a Prometheus that scraped the service until the present five minutes began, and now scrapes what
    is in ``folder``/targets."""
    (folder / "targets").mkdir(parents=True)
    labels = f'namespace="{namespace}",service="{service}",pod="before",finished_reason="stop"'
    samples = [
        f"vllm:request_success_total{{{labels}}} {count:.3f} {at_s:.0f}"
        for at_s, count in demand.history(time.time() // BUCKET_S * BUCKET_S)
    ]
    history = "\n".join(["# TYPE vllm:request_success counter", *samples, "# EOF", ""])
    running = RunningPrometheus(folder, history, SCRAPES)
    try:
        yield running.url
    finally:
        running.stop()


class Clients:
    """Send as many requests as ``demand`` says, to the servers in turn; a context."""

    def __init__(self, demand: Demand, servers: Callable[[], Sequence[str]]) -> None:
        """``servers``: their addresses, HOST:PORT."""
        self._demand, self._servers = demand, servers
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._send, daemon=True)
        self.answered = 0

    def __enter__(self) -> "Clients":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._thread.join(timeout=30)

    def _send(self) -> None:
        due_s, servers, looked_s = time.time(), list[str](), 0.0
        with httpx.Client(trust_env=False, timeout=5) as client:
            while not self._ending.wait(max(0.0, due_s - time.time())):
                # Late requests are sent at once: the number in five minutes counts.
                due_s += BUCKET_S / self._demand.requests(due_s)
                if time.time() - looked_s > 2:
                    servers, looked_s = list(self._servers()), time.time()
                for server in servers[self.answered % len(servers) :] if servers else ():
                    try:
                        client.post(f"http://{server}/v1/completions", json={})
                    except httpx.TransportError:
                        continue
                    self.answered += 1
                    break
