"""Fixtures that all tests share: a state folder of their own, and the real data where it is."""

import gc
import hashlib
import logging
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import hypothesis
import pytest
from example_budget import THOROUGH, examples
from prometheus_server import RunningPrometheus, counters

if TYPE_CHECKING:
    from kopt.data.demand.table import DemandSeries

# Fixtures of the control plane and of the trainers' environments.
pytest_plugins = ["controlplane.plugin", "trainer_environments"]

# What modules hold stays until the end: looking through it again and again took a quarter of the time of imports.
# ``pytest_collection_finish`` switches the garbage collector on.
gc.disable()
# Tests start Python hundreds of times; without compiled modules on disk each start compiles what it imports again.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
# Threads that wait for each other by spinning are many times slower than one where the machine is shared. numpy reads
# these variables once, when it is imported.
if "numpy" in sys.modules:
    raise pytest.UsageError("a plugin imports numpy before its threads are limited; switch it off in pyproject.toml")
for _threads in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_threads, "1")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
# Ray gives its workers way to all other processes, here to the other groups of tests; then a fit never ends.
os.environ.setdefault("RAY_worker_niceness", "0")
# A quarter of the garbage collections of etcd, API servers and what watches them, for some memory.
os.environ.setdefault("GOGC", "400")
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
os.environ.setdefault("HF_HUB_OFFLINE", "1")


# No deadlines and no complaint that drawing is slow: machines are shared. Continuous integration draws the same
# examples every time and does not search for the smallest one that fails, which takes minutes, with every new try
# again; people and thorough runs get new ones.
_SHARED = {
    "deadline": None,
    "suppress_health_check": [hypothesis.HealthCheck.too_slow],
    "max_examples": examples(40),
}
hypothesis.settings.register_profile("people", **_SHARED)
hypothesis.settings.register_profile("thorough", **_SHARED)
_QUICK = {"derandomize": True, "database": None, "phases": (hypothesis.Phase.explicit, hypothesis.Phase.generate)}
hypothesis.settings.register_profile("ci", **(_SHARED | _QUICK))
# For `make mutants`.
hypothesis.settings.register_profile("mutants", **(_SHARED | _QUICK | {"max_examples": 10}))
hypothesis.settings.load_profile("thorough" if THOROUGH else "ci" if os.environ.get("CI") else "people")


# What talks to real servers on a shared machine may be late; it gets two more tries, and the summary says why.
_LONG_S = 300
_REAL = {"ray", "browser", "services", "cluster", "slow"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if THOROUGH and hypothesis.is_hypothesis_test(getattr(item, "obj", None)):
            item.add_marker(pytest.mark.thorough)
            item.add_marker(pytest.mark.timeout(3600))
        if item.get_closest_marker("thorough") and not THOROUGH:
            item.add_marker(pytest.mark.skip(reason="only a long run shows it: make test-thorough"))
        if any(mark.name in _REAL for mark in item.iter_markers()):
            # One that may take long shows once more that it cannot, and leaves time for the others.
            limit = item.get_closest_marker("timeout")
            item.add_marker(pytest.mark.flaky(reruns=1 if limit and limit.args[0] > _LONG_S else 2))


def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)
    gc.enable()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Why a first try failed: without it a second try that fails for its own reasons hides the first."""
    for report in terminalreporter.stats.get("rerun", []):
        crash = getattr(report.longrepr, "reprcrash", None)
        where = f"{crash.path}:{crash.lineno}: {crash.message}" if crash else report.longreprtext[-2000:]
        terminalreporter.write_line(f"RERUN {report.nodeid} ({report.when}): {where}")


@pytest.fixture(autouse=True)
def _logging_as_it_was() -> Iterator[None]:
    """A command that runs inside a test sets logging up, on a stream that is closed after it."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.fixture
def kopt_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty state folder, named by KOPT_HOME."""
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("KOPT_HOME", str(home))
    return home


@pytest.fixture
def compiled_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scripts run on a fake device that is compiled once for its source, and not once for each home."""
    from kopt.tracing import trace

    source = b"".join((trace.PROBE / name).read_bytes() for name in ("device.py", "fake_device.cpp"))
    kept = Path.home() / ".cache" / "kopt" / f"fake-device-{hashlib.sha256(source).hexdigest()[:16]}"
    monkeypatch.setattr(trace, "environment_cache", lambda *_: kept)


@pytest.fixture(scope="session")
def demand_data_dir() -> Path:
    """The real demand series; absent, the test is skipped, or fails where KOPT_REQUIRE_DATA=1."""
    root = os.environ.get("KOPT_DATA_DIR")
    folder = Path(root) / "demand" if root else None
    if folder is None or not (folder / "demand.parquet").exists():
        message = "KOPT_DATA_DIR does not name a folder with demand/demand.parquet"
        if os.environ.get("KOPT_REQUIRE_DATA") == "1":
            pytest.fail(message)
        pytest.skip(message)
    return folder


@pytest.fixture
def prometheus_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., RunningPrometheus]]:
    """Starts real Prometheus servers on loopback: ``prometheus_server(history).url``.

    ``history`` is OpenMetrics text, or series of demand, which become counters ``requests_total{service="…"}`` with a
    sample a minute. Needs the Debian package ``prometheus``.
    """
    running: list[RunningPrometheus] = []

    def start(history: "str | Iterable[DemandSeries]") -> RunningPrometheus:
        text = history if isinstance(history, str) else counters(history)
        running.append(RunningPrometheus(tmp_path_factory.mktemp("prometheus"), text))
        return running[-1]

    yield start
    for server in running:
        server.stop()
