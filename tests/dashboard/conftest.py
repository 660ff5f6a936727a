"""The pages over real parts: generated services in files, the real endpoint in process, a small fitted model."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from asgi_server import served

from kopt.cli.local.example.gpu_hours import ExampleGpuHours
from kopt.core.prediction import ModelVersion, Prediction
from kopt.core.reason import Reason
from kopt.core.settings import Settings
from kopt.core.units import GIB, Bytes
from kopt.core.workload.sizing import MemoryBreakdown, Method, TraceCoverage
from kopt.dashboard.app import create_app, pages_client
from kopt.dashboard.data.histories import FolderHistories
from kopt.dashboard.data.records import Records
from kopt.dashboard.data.snapshot import SNAPSHOT
from kopt.dashboard.live import LiveSource
from kopt.dashboard.pages.efficiency.data import EFFICIENCY
from kopt.dashboard.pages.models.data import MODELS
from kopt.dashboard.pages.sizes.data import SIZES
from kopt.data.demand.generator import generate, write_demand
from kopt.data.demand.table import DemandSeries
from kopt.models.registry.registry import MetricRow, NotRegisteredError, RegisteredModel, RegistryError
from kopt.models.sizing.code import CodeEstimate
from kopt.models.sizing.trace_summary import summary
from kopt.serving.endpoint.app import Endpoint
from kopt.serving.endpoint.app import create_app as endpoint_app
from kopt.serving.endpoint.assemble import Parts, assemble
from kopt.serving.sizing.service import SizingService

PAGES = "http://127.0.0.1:8701"
HOSTILE = (
    "<script>alert(1)</script>",
    "a/b/../c",
    "..",
    ".",
    "what?#&x=%2F",
    "\"quoted\" 'name'",
    "حجم الطلب",
    "{{ 7*7 }}",
    "long-" * 50,
    "space  name",
    "emoji 🛰️",
)

HOSTILE_NAME = "<script>alert(1)</script>"
CODE = CodeEstimate(
    Method.ABSTRACT,
    TraceCoverage.FULL,
    Bytes(4 * GIB),
    Bytes(5 * GIB),
    MemoryBreakdown(Bytes(GIB), Bytes(GIB), Bytes(2 * GIB)),
    steps=3,
)


class RatioModel:
    """Quantiles of the ratio to the last value, fitted on the very history: small, causal, never the same twice."""

    def __init__(self, version: str = "1") -> None:
        self.version = ModelVersion("demand", version, version.rjust(64, "0"))

    def forecast(
        self,
        series: DemandSeries,
        horizons_s: Sequence[int],
        quantiles: Sequence[float],
        *,
        calibration: Any = None,
        now_s: float | None = None,
    ) -> tuple[Prediction, ...]:
        known = series.value[np.isfinite(series.value)]
        if len(known) < 12:
            why = Reason("TOO_SHORT", f"{len(known)} values are too few; an hour is needed.", {"values": len(known)})
            return tuple(
                Prediction.refusal(why, unit=series.unit, model=self.version, horizon_s=float(h)) for h in horizons_s
            )
        return tuple(self._at(series, known, h, quantiles) for h in horizons_s)

    def _at(self, series: DemandSeries, known: Any, horizon_s: int, quantiles: Sequence[float]) -> Prediction:
        lag = max(1, horizon_s // series.step_s)
        ratios = (known[lag:] + 1) / (known[:-lag] + 1) if len(known) > lag else np.ones(1)
        last = float(known[-1])
        levels = {q: float((last + 1) * np.quantile(ratios, q) - 1) for q in (0.05, *quantiles)}
        levels = {q: max(0.0, value) for q, value in levels.items()}
        low = levels.pop(0.05)
        reason = Reason(
            "RATIO", f"Last value {last:g}; over {len(known)} buckets demand moved by these ratios.", {"last": last}
        )
        return Prediction(
            levels.get(0.5, last),
            min(low, levels.get(0.5, last)),
            max(levels.values()),
            0.9,
            series.unit,
            0.8,
            self.version,
            (reason,),
            levels,
            float(series.times_s[-1]),
            float(horizon_s),
        )


@dataclass
class MemoryRegistry:
    """Versions in memory, for the endpoint (``resolve``, ``load``) and for the pages (``list``, ``compare``)."""

    models: dict[str, RegisteredModel] = field(default_factory=dict)
    metrics: dict[str, dict[str, float]] = field(default_factory=dict)
    down: bool = False
    torn: str = ""
    """The version whose files cannot be loaded."""

    def add(self, version: str, alias: str = "", metrics: dict[str, float] | None = None, **more: Any) -> None:
        for key, model in self.models.items():
            if alias in model.aliases:
                self.models[key] = replace(model, aliases=())
        aliases = (alias,) if alias else ()
        digest = version.rjust(64, "0")
        self.models[version] = RegisteredModel("demand", version, digest, "run", 1.75e9, aliases, **more)
        self.metrics[version] = metrics or {}

    def resolve(self, name: str, alias: str) -> RegisteredModel:
        found = [model for model in self.list(name) if model.name == name and alias in model.aliases]
        if not found:
            raise NotRegisteredError(f"{name} has no {alias}")
        return found[0]

    def load(self, name: str, version: str) -> Any:
        if version == self.torn:
            raise ValueError("the text of the trees is not whole")
        return RatioModel(version)

    def list(self, name: str) -> tuple[RegisteredModel, ...]:
        if self.down:
            raise RegistryError("connecting to sqlite:///gone: unable to open database file")
        found = [model for model in self.models.values() if model.name == name]
        return tuple(sorted(found, key=lambda model: -int(model.version)))

    def compare(self, name: str, versions: Sequence[str] = ()) -> tuple[MetricRow, ...]:
        tables = [self.metrics[version] for version in versions]
        return tuple(MetricRow(m, tuple(t.get(m) for t in tables)) for m in sorted({m for t in tables for m in t}))


@dataclass
class Platform:
    """Everything under the pages. ``down`` cuts the endpoint off."""

    settings: Settings
    registry: MemoryRegistry
    endpoint: Endpoint
    live: LiveSource
    down: list[bool]

    async def refresh(self) -> None:
        await asyncio.to_thread(self.endpoint.refresh)
        await self.live.refresh(SNAPSHOT)
        await self.live.refresh(MODELS)
        await self.live.refresh(EFFICIENCY)

    def write(self, series: Sequence[DemandSeries]) -> None:
        write_demand(series, self.settings.home / "demand")


class Wire(httpx.AsyncBaseTransport):
    """The endpoint's application as a transport that can be cut."""

    def __init__(self, endpoint: Endpoint, down: list[bool]) -> None:
        self._inner, self._down = httpx.ASGITransport(endpoint_app(endpoint, manage=False)), down

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if self._down[0]:
            raise httpx.ConnectError("connection refused")
        return await self._inner.handle_async_request(request)


@pytest.fixture(scope="session")
def services() -> list[DemandSeries]:
    """Four generated services of nine days."""
    return generate(services=4, days=9, seed=3)


@pytest.fixture
def registry() -> MemoryRegistry:
    found = MemoryRegistry()
    names = [f"web/{metric}_{minutes}min" for metric in ("mase", "eff99", "calm_share") for minutes in (5, 30, 60)]
    figures = {"all/mase_5min": 0.83, "all/eff99_60min": 0.62, "llm/mase_5min": 0.9, "coverage": 0.99}
    found.add(
        "1",
        "champion",
        figures | dict.fromkeys(names, 0.5),
        tags={"dataset_digest": "feedbeef" * 8, "promoted_s": "1750000000"},
        gate="passed",
        gate_summary="The first champion.",
    )
    figures = {"all/mase_5min": 0.85, "all/eff99_60min": 0.66, "llm/mase_5min": 0.88, "odd": 1.0}
    found.add(
        "2",
        "challenger",
        figures | dict.fromkeys(names, 0.4),
        tags={"dataset_digest": "cafe" * 16},
        gate="refused",
        gate_against="1",
        gate_summary="Slice web: MASE 0.97 against 0.91, allowed 0.93.",
    )
    return found


@pytest.fixture
async def platform(tmp_path: Path, registry: MemoryRegistry, services: list[DemandSeries]) -> AsyncIterator[Platform]:
    """Written, served, not refreshed yet."""
    settings = Settings(home=tmp_path)
    endpoint = assemble(settings, Parts(source=registry, refresh_s=3600))
    await asyncio.to_thread(endpoint.start)
    down = [False]
    client = pages_client("http://endpoint", transport=Wire(endpoint, down))
    live = LiveSource(
        FolderHistories(tmp_path / "demand"),
        client,
        registry,
        url="http://endpoint",
        home=tmp_path,
        patience_s=60,
        records=Records(gpu_hours=ExampleGpuHours()),
    )
    made = Platform(settings, registry, endpoint, live, down)
    made.write(services)
    yield made
    await client.close()
    await asyncio.to_thread(endpoint.stop)


@pytest.fixture
async def pages(platform: Platform) -> AsyncIterator[httpx.AsyncClient]:
    """A client of the pages after a first refresh."""
    await platform.refresh()
    app = create_app(platform.settings, source=platform.live)
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url=PAGES) as client:
        yield client


@pytest.fixture
def serve_pages() -> Iterator[Callable[[Any], str]]:
    """Serves an application on a free loopback port from a thread; gives its address."""
    with contextlib.ExitStack() as running:
        yield lambda app: running.enter_context(served(app, lifespan="off"))


@pytest.fixture
async def asked(platform: Platform) -> Platform:
    """Three job types were asked about: one that ran, one that nobody knows, one with a hostile name."""
    await asyncio.to_thread(platform.endpoint.service(SizingService).refresh)
    container = {"image": "train:1", "command": ["python", "train.py"], "resources": {"limits": {"nvidia.com/gpu": 1}}}
    pod = {"metadata": {"name": "finetune"}, "spec": {"containers": [container]}}
    questions = [
        {"workload": pod, "trace": summary(CODE)},
        {"workload": {"script": "import torch\n", "name": "unknown.py"}},
        {"workload": {"script": "import os\n"}, "name": HOSTILE_NAME, "trace": summary(CODE)},
    ]
    transport = httpx.ASGITransport(endpoint_app(platform.endpoint, manage=False))
    async with httpx.AsyncClient(transport=transport, base_url="http://endpoint") as client:
        for question in questions:
            reply = await client.post("/v1/sizing", json=question, headers={"x-kopt-deadline-ms": "30000"})
            assert reply.status_code == 200, reply.text
            assert not reply.json()["fallback"]
    await platform.live.refresh(SIZES)
    return platform
