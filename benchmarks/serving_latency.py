"""Latency of ``/v1/demand`` through real Ray Serve and its HAProxy: two warm clients, beside a floor in the same run.

The floor is a Serve endpoint that reads the same body and answers a constant. "Same bucket" polls with an unchanged
history, as callers do between two buckets; "new bucket" extends the history by one bucket on every request, which in
production happens once in five minutes per service. CPU is the replica's, per request. ``/v1/sizing`` is measured
after it on the same endpoint (``benchmarks.sizing_latency``). Prints Markdown; returns 1 when a target is missed.

    python -P -m benchmarks serving
"""

import http.client
import json
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

CLIENTS = 2
WARM_UP, REQUESTS = 150, 1000
TARGET_P50_MS, TARGET_P99_MS = 2.0, 8.0
DAY = 288


@dataclass(frozen=True)
class Case:
    """One row of the table. ``points`` of history (0: by name only); ``grows`` adds a bucket with every request."""

    name: str
    path: str
    points: int
    grows: bool = False


CASES = (
    Case("floor: Serve endpoint, empty body", "/floor", 0),
    Case("floor: Serve endpoint, one day in the body", "/floor", DAY),
    Case("one day of history, same bucket", "/v1/demand", DAY + 12),
    Case("one day of history, new bucket", "/v1/demand", DAY + 12, grows=True),
    Case("one week of history, same bucket", "/v1/demand", 7 * DAY),
    Case("one week of history, new bucket", "/v1/demand", 7 * DAY, grows=True),
    Case("by name from the feature store", "/v1/demand", 0),
)


@dataclass(frozen=True)
class Row:
    """Measured milliseconds over all clients, and how many answers were fallbacks or refusals."""

    case: Case
    p50_ms: float
    p99_ms: float
    cpu_ms: float
    without_model: int

    @property
    def reached(self) -> bool:
        return self.p50_ms <= TARGET_P50_MS and self.p99_ms <= TARGET_P99_MS and not self.without_model


def main() -> int:
    """Print the table; 0 when every polled case reaches the target."""
    import numpy as np

    from benchmarks import sizing_latency
    from kopt.core.settings import Settings
    from kopt.serving.endpoint import deploy

    with tempfile.TemporaryDirectory(prefix="kopt-bench-", ignore_cleanup_errors=True) as folder:
        settings = Settings(home=Path(folder), api_port=0)
        deploy.prepare_environment(settings)
        values = _prepare(settings)
        with deploy.running(settings) as running:
            _start_floor()
            _wait_for_model(running.url)
            sizing_latency.send_traces(running.url)
            rows = [_measure(case, running.url, values) for case in CASES]
            sizes = sizing_latency.measure(running.url)
            memory = _memory_mib()
    print(f"Target: P50 ≤ {TARGET_P50_MS:g} ms, P99 ≤ {TARGET_P99_MS:g} ms with {CLIENTS} clients.\n")
    print("| case | P50 ms | P99 ms | CPU ms | without the model | reached |\n|---|---|---|---|---|---|")
    for row in rows:
        verdict = "" if row.case.path == "/floor" else "yes" if row.reached else "no"
        print(
            f"| {row.case.name} | {row.p50_ms:.2f} | {row.p99_ms:.2f} | {row.cpu_ms:.2f} | {row.without_model} | "
            f"{verdict} |"
        )
    reached = sizing_latency.report(sizes)
    print("\n| process | resident MiB |\n|---|---|")
    for name, mib in memory:
        print(f"| {name} | {mib} |")
    print(f"| sum | {int(np.sum([mib for _, mib in memory]))} |")
    judged = [row for row in rows if row.case.path != "/floor" and not row.case.grows]
    return 0 if reached and all(row.reached for row in judged) else 1


def _prepare(settings: "object") -> list[float]:
    """A registry with a champion, a feature store with the benchmark's service; returns its demand."""
    import numpy as np

    from kopt.core.settings import Settings
    from kopt.data.demand.generator import generate
    from kopt.data.demand.table import DemandSeries
    from kopt.features.store import DemandFeatureStore
    from kopt.models.registry.registry import Registry

    assert isinstance(settings, Settings)
    registry = Registry(settings)
    model = registry.register(_model_folder(settings))
    registry.promote("demand", model.version, force=True, reason="benchmark")
    (service,) = generate(services=1, days=8 + (WARM_UP + REQUESTS) / DAY, seed=3)
    value = np.nan_to_num(service.value, nan=float(np.nanmean(service.value)))
    now_s = time.time() // 300 * 300
    stored = DemandSeries("stored", now_s - 300 * 2016, 300, value[:2016], start_known=True)
    store = DemandFeatureStore(settings)
    store.write([stored])
    store.materialise()
    return [float(v) for v in value]


def _model_folder(settings: "object") -> Path:
    """The shipped model; where none is shipped, one fitted on generated services."""
    from kopt.core.settings import Settings
    from kopt.core.signing_keys import signing_key
    from kopt.data.demand.generator import generate
    from kopt.models.demand.global_model import GlobalSettings
    from kopt.models.demand.predictor import DemandPredictor
    from kopt.models.demand.table import training_table
    from kopt.models.registry.artifact import ArtefactError, ModelCard, save_model
    from kopt.models.registry.shipped import verified_shipped
    from kopt.models.registry.signing import sign_folder

    assert isinstance(settings, Settings)
    try:
        return verified_shipped("demand")
    except ArtefactError:
        print("No model is shipped: measured with one fitted on generated services.\n")
    fitted = DemandPredictor(GlobalSettings(threads=1)).fit(training_table(generate(services=3, days=4)))
    folder = settings.home / "fitted"
    save_model(fitted, folder, ModelCard("demand"))
    sign_folder(folder, signing_key(settings.keys))
    return folder


def _start_floor() -> None:
    from ray import serve
    from starlette.requests import Request

    from kopt.serving.base.local_ray import keep_replica_on_loopback

    @serve.deployment(ray_actor_options={"num_cpus": 0}, max_ongoing_requests=100)
    class Floor:
        def __init__(self) -> None:
            keep_replica_on_loopback()

        async def __call__(self, request: Request) -> dict[str, int]:
            return {"bytes": len(await request.body())}

    serve.run(Floor.bind(), name="floor", route_prefix="/floor")


def _wait_for_model(url: str, within_s: float = 60.0) -> None:
    from kopt.serving.client.blocking import PredictionClient

    end_s = time.monotonic() + within_s
    with PredictionClient(url) as client:
        while not client.ready(deadline_s=5.0):
            if time.monotonic() > end_s:
                said = http.client.HTTPConnection(urlsplit(url).netloc, timeout=5)
                said.request("GET", "/readyz")
                raise RuntimeError(f"{url} is not ready: {said.getresponse().read()[:500]!r}")
            time.sleep(0.2)


def _measure(case: Case, url: str, values: list[float]) -> Row:
    """All clients at once, each a process of its own on the standard library."""
    import numpy as np

    script = Path(__file__).resolve()
    job = json.dumps({"url": url, "case": vars(case), "values": values})
    cpu_s = _replica_cpu_s()
    running = [
        subprocess.Popen(
            [sys.executable, "-P", str(script), f"client-{i}"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for i in range(CLIENTS)
    ]
    for client in running:
        assert client.stdin is not None
        client.stdin.write(job)
        client.stdin.close()
    results = [json.loads(client.stdout.read()) for client in running if client.stdout is not None]
    for client in running:
        client.wait()
    cpu_ms = (_replica_cpu_s() - cpu_s) * 1000 / (CLIENTS * (WARM_UP + REQUESTS))
    seconds = np.concatenate([result["seconds"] for result in results]) * 1000
    p50, p99 = np.quantile(seconds, [0.5, 0.99])
    return Row(case, float(p50), float(p99), cpu_ms, sum(result["without_model"] for result in results))


def _replica_cpu_s() -> float:
    """CPU seconds of all replicas of the endpoint so far; the floor's are its own and not counted."""
    import psutil

    found = 0.0
    for child in psutil.Process().children(recursive=True):
        try:
            if child.cmdline()[:1] and "PredictionEndpoint" in child.cmdline()[0]:
                times = child.cpu_times()
                found += times.user + times.system
        except psutil.Error:
            continue
    return found


def _memory_mib() -> list[tuple[str, int]]:
    import psutil

    found = []
    for child in psutil.Process().children(recursive=True):
        try:
            name = child.cmdline()[0] if child.cmdline() else child.name()
            found.append((Path(name.split(" ")[0]).name, child.memory_info().rss >> 20))
        except psutil.Error:
            continue
    return sorted(found, key=lambda row: -row[1])


def client(name: str) -> None:
    """One client: reads its job from standard input, prints what it measured."""
    job = json.load(sys.stdin)
    case, values = Case(**job["case"]), job["values"]
    address = urlsplit(job["url"])
    connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=30)
    seconds, without_model, body = [], 0, b""
    for i in range(WARM_UP + REQUESTS):
        if case.grows or i == 0:
            body = _body(case, name, values, i)
        started = time.perf_counter()
        connection.request("POST", case.path, body, {"content-type": "application/json"})
        reply = connection.getresponse()
        content = reply.read()
        elapsed = time.perf_counter() - started
        if i >= WARM_UP:
            seconds.append(elapsed)
            bad = reply.status != 200 or b'"fallback":true' in content or b'"refused":true' in content
            without_model += bad
    json.dump({"seconds": seconds, "without_model": without_model}, sys.stdout)


def _body(case: Case, name: str, values: list[float], shift: int) -> bytes:
    if case.path == "/floor" and not case.points:
        return b"{}"
    if not case.points:
        return json.dumps({"series": [{"name": "stored"}], "capacity_per_gpu": 50.0}).encode()
    times = [300 * i for i in range(shift, shift + case.points)]
    series = {"name": f"{name}-{case.name}", "t": times, "value": values[shift : shift + case.points]}
    return json.dumps({"series": [series], "capacity_per_gpu": 50.0}).encode()


if __name__ == "__main__":
    client(sys.argv[1])
