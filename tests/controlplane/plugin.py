"""Fixtures: a real control plane, simulated nodes, Kueue, KAI, KubeRay and helm; built when first needed.

What the collected tests need is built before the first of them runs, outside their time limits. Every test that asks
for one of these fixtures is marked ``cluster``. ``KUBEBUILDER_ASSETS`` may name a folder with ready binaries;
``KOPT_TEST_KUBECONFIG`` a cluster to use in place of one's own (tests that need more of it are skipped).
"""

import os
import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from controlplane import build
from controlplane.borrowed import BorrowedCluster
from controlplane.collector_server import Collector
from controlplane.kai import Kai
from controlplane.kubelet import Kubelet
from controlplane.kueue import Kueue
from controlplane.kwok import Kwok
from controlplane.plane import BINARIES, Cluster, ControlPlane, Settings, asset

#: The groups of components behind each fixture, in the order of building.
NEEDS = {
    "control_plane": ("etcd", "kubernetes"),
    "fresh_control_plane": ("etcd", "kubernetes"),
    "kwok": ("kwok",),
    "kueue": ("kueue",),
    "kai": ("kai",),
    "kuberay_operator": ("kuberay",),
    "nvidia_device_plugin": ("nvidia",),
    "helm": ("helm",),
    "s3_server": ("s3",),
    "kube_state_metrics": ("kubestate",),
    "otel_collector": ("collector",),
}


_TESTS = Path(__file__).parents[1]
_MENTIONS = {
    "cluster": re.compile(rf"\b(?:mark\.cluster|{'|'.join(NEEDS)})\b"),
    "ray": re.compile(r"\bmark\.ray\b"),
}
"""By marker: the words without which a module of tests, and its conftest.py, has none that needs it."""
_CHOSEN = re.compile(rf"\(?({'|'.join(_MENTIONS)})\b(?! or)")


@cache
def _mentions(marker: str, file: Path) -> bool:
    return file.exists() and _MENTIONS[marker].search(file.read_text()) is not None


def may_need(marker: str, module: Path) -> bool:
    """Whether a module of tests, or a conftest.py that it shares, has the word for what needs the cluster, or Ray."""
    folders = [folder for folder in module.parents if _TESTS in folder.parents]
    return any(_mentions(marker, file) for file in (module, *(folder / "conftest.py" for folder in folders)))


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """With ``-m cluster`` or ``-m ray`` (and more), imports only modules that may need it: importing all takes half a
    minute."""
    is_module = collection_path.name.startswith("test_") and collection_path.suffix == ".py"
    chosen = _CHOSEN.match(config.option.markexpr)
    return True if chosen and is_module and not may_need(chosen[1], collection_path) else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks the tests that need the cluster, before ``-m`` chooses."""
    for item in items:
        if not NEEDS.keys().isdisjoint(getattr(item, "fixturenames", ())):
            item.add_marker("cluster")
        for marker in _MENTIONS:
            if item.get_closest_marker(marker) and not may_need(marker, item.path):
                raise pytest.UsageError(f"{item.nodeid} is marked as {marker}; its module or conftest.py has to say so")


def _definitions(item: pytest.Item) -> dict[str, pytest.FixtureDef[Any]]:
    """The fixtures that a test uses, by name."""
    info = getattr(item, "_fixtureinfo", None)
    return {name: known[-1] for name, known in info.name2fixturedefs.items()} if info is not None else {}


_last_tests: dict[pytest.FixtureDef[Any], pytest.Item] = {}


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    """A control plane ends with the last test that uses it, not with the session; for another try it begins again."""
    for known in _definitions(item).values():
        ends = _last_tests.get(known) is item and known.cached_result is not None
        if ends and known.cached_result and isinstance(known.cached_result[0], ControlPlane):
            known.finish(item._request)  # type: ignore[attr-defined]


def pytest_collection_finish(session: pytest.Session) -> None:
    """Builds what the chosen tests need and is not there yet; a failed build fails those tests, with its reason."""
    for item in session.items:
        _last_tests.update({known: item for known in _definitions(item).values() if known.scope == "session"})
    if session.config.option.collectonly:
        return
    # Who skips a test for a long run builds nothing for it either.
    chosen = [item for item in session.items if item.get_closest_marker("skip") is None]
    used = {name for item in chosen for name in getattr(item, "fixturenames", ())}
    groups = [group for fixture, parts in NEEDS.items() if fixture in used for group in parts if not given(group)]
    capture: Any = session.config.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled():
        for group in dict.fromkeys(groups):
            try:
                build.binaries(group)
            except build.BuildError:
                return  # the fixture says it again, as that test's error


def given(group: str) -> bool:
    """Whether the folder KUBEBUILDER_ASSETS, or a cluster that is used in its place, makes a group unnecessary."""
    if group in BINARIES and os.environ.get("KOPT_TEST_KUBECONFIG"):
        return True  # a control plane for one test is then built in that test, if it can be
    return group in BINARIES and all(asset(name) for name in BINARIES[group])


@pytest.fixture(scope="session")
def control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane | BorrowedCluster]:
    """One running control plane for all tests; each works in a namespace of its own and cleans up what is wider."""
    folder = tmp_path_factory.mktemp("control-plane")
    given = os.environ.get("KOPT_TEST_KUBECONFIG")
    if given:
        yield BorrowedCluster(Path(given), folder)
        return
    plane = ControlPlane(folder)
    yield plane
    plane.stop()


@pytest.fixture
def fresh_control_plane(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Callable[..., ControlPlane]]:
    """``fresh_control_plane(**settings)`` starts one (5 s) for a test that hurts it; see ``plane.Settings``."""
    running: list[ControlPlane] = []

    def start(**settings: Any) -> ControlPlane:
        running.append(ControlPlane(tmp_path_factory.mktemp("control-plane"), Settings(**settings)))
        return running[-1]

    yield start
    for plane in running:
        plane.stop()


def _own(cluster: Cluster) -> ControlPlane:
    """The control plane, where it is not somebody else's."""
    if not isinstance(cluster, ControlPlane):
        pytest.skip("changes the whole cluster, so not one that KOPT_TEST_KUBECONFIG names")
    return cluster


@pytest.fixture(scope="session")
def helm() -> Path:
    """The command ``helm``."""
    return build.binaries("helm") / "helm"


@pytest.fixture(scope="session")
def kube_state_metrics() -> Path:
    """The command ``kube-state-metrics``."""
    return build.binaries("kubestate") / "kube-state-metrics"


@pytest.fixture
def otel_collector(tmp_path: Path) -> Iterator[Collector]:
    """OpenTelemetry's collector, running."""
    running = Collector(build.binaries("collector") / "otelcol", tmp_path)
    yield running
    running.stop()


@pytest.fixture(scope="session")
def kuberay_operator() -> Path:
    """KubeRay's operator, for ``KubeRay``."""
    return build.binaries("kuberay") / "ray-operator"


@pytest.fixture(scope="session")
def nvidia_device_plugin() -> Path:
    """NVIDIA's device plugin, for a kubelet with a ``DeviceManager``."""
    return build.binaries("nvidia") / "nvidia-device-plugin"


@pytest.fixture(scope="session")
def kwok(control_plane: Cluster) -> Iterator[Kwok]:
    """Simulated nodes: ``with kwok.nodes(4, gpus=8) as nodes:``; pods on them run until they are deleted."""
    running = Kwok(control_plane)
    yield running
    running.stop()


@pytest.fixture(scope="session")
def kueue(control_plane: Cluster) -> Iterator[Kueue]:
    """A real Kueue: ``with kueue.queue(namespace, {"nvidia.com/gpu": 8}) as name:`` makes queues with quota."""
    running = Kueue(_own(control_plane))
    yield running
    running.stop()


@pytest.fixture(scope="session")
def kai(control_plane: Cluster) -> Iterator[Kai]:
    """A real KAI scheduler: ``with kai.queue(gpus=8) as name:`` makes a queue for the label ``kai.scheduler/queue``."""
    running = Kai(_own(control_plane))
    yield running
    running.stop()


@pytest.fixture(scope="session")
def kubelet(control_plane: ControlPlane) -> Iterator[Kubelet]:
    """A node whose pods run as local processes; others may be made with ``Kubelet(control_plane, …)``."""
    with Kubelet(_own(control_plane)) as running:
        yield running
