"""The meter as the chart installs it stores how busy GPUs were, and `kopt utilisation show` and the pages show it."""

import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from chart import WITHOUT_DEFAULTS
from controlplane.kueue import Kueue
from controlplane.kwok import Kwok
from controlplane.plane import ControlPlane
from cost.conftest import GPU, PRODUCT, Team
from prometheus_server import RunningPrometheus
from typer.testing import CliRunner

from kopt.cli.local.pages.utilisation import utilisation_of
from kopt.cli.main import app
from kopt.policies.efficiency.groups import GONE
from kopt.serving.base.environment import load_settings
from tests.gpu_history import Metric, history

from .rights import assert_refused_nothing, audited, start_controller

ACCOUNT = "kopt-meter"
METRICS = {"url": "https://metrics.example.com", "tokenSecret": "token", "caSecret": "ca"}
FLAVORS = {"apiGroups": ["kueue.x-k8s.io"], "resources": ["resourceflavors"], "verbs": ["list"]}


def values_of(prometheus: dict[str, str]) -> dict[str, Any]:
    return {"meter": {"enabled": True, "prometheus": prometheus}, **WITHOUT_DEFAULTS}


def rendered(charts: Any, prometheus: dict[str, str]) -> dict[str, Any]:
    """What has the meter's name, by kind."""
    documents = charts.render(values_of(prometheus))
    return {item["kind"]: item for item in documents if item["metadata"]["name"] == ACCOUNT}


def test_without_a_prometheus_nothing_is_read_and_no_right_is_added(charts: Any) -> None:
    objects = rendered(charts, {})
    (container,) = objects["Deployment"]["spec"]["template"]["spec"]["containers"]
    assert not [text for text in container["args"] if text.startswith(("--prometheus", "--token", "--certificate"))]
    assert FLAVORS not in objects["ClusterRole"]["rules"]
    assert not [rule for rule in objects["NetworkPolicy"]["spec"]["egress"] if {"port": 53} in rule.get("ports", [])]


def test_it_reads_the_prometheus_that_the_values_name_and_may_reach_it(charts: Any) -> None:
    objects = rendered(charts, METRICS)
    pod = objects["Deployment"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert {
        "--prometheus=https://metrics.example.com",
        "--token-file=/etc/kopt/prometheus/token",
        "--certificate-authority=/etc/kopt/prometheus-ca/ca.crt",
    } <= set(container["args"])
    mounts = {item["mountPath"]: item["name"] for item in container["volumeMounts"]}
    volumes = {item["name"]: item for item in pod["volumes"]}
    assert volumes[mounts["/etc/kopt/prometheus"]]["secret"]["secretName"] == "token"
    assert volumes[mounts["/etc/kopt/prometheus-ca"]]["secret"]["secretName"] == "ca"
    assert FLAVORS in objects["ClusterRole"]["rules"]
    assert {"ports": [{"port": 443}]} in objects["NetworkPolicy"]["spec"]["egress"]


@pytest.mark.parametrize("url", ["prometheus:9090", "http://user@prometheus:9090"])
def test_what_is_no_address_is_refused_by_name(charts: Any, url: str) -> None:
    with pytest.raises(Exception, match="meter/prometheus/url"):
        charts.render(values_of({"url": url}))


@pytest.mark.cluster
@pytest.mark.long
def test_hours_go_from_prometheus_through_the_installed_meter_to_who_looks(
    control_plane: ControlPlane,
    charts: Any,
    install: Callable[..., None],
    here: tuple[Kueue, Kwok],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("KOPT_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("KOPT_DATABASE_URL", raising=False)
    monkeypatch.delenv("KOPT_STATE_DIR", raising=False)
    started, (kueue, kwok) = datetime.now(UTC), here
    with kwok.nodes(1, gpus=8, labels=PRODUCT) as nodes:
        team = Team(control_plane, nodes, "utilisation")
        ratios = {(nodes[0], "0"): 0.1, (nodes[0], "1"): 0.9, ("left-the-cluster", "0"): 0.5}
        series = [
            Metric("kopt:gpu:busy_ratio", {"node": node, "gpu": gpu}, ratio) for (node, gpu), ratio in ratios.items()
        ]
        prometheus = RunningPrometheus(tmp_path, history(*series))
        values = values_of({"url": prometheus.url})
        try:
            install(values)
            with kueue.queue(team.space, {GPU: 8}):
                server, _ = start_controller(control_plane, charts, values, ACCOUNT)
                try:
                    pages = utilisation_of({}, load_settings())
                    assert pages is not None
                    # Two days of two pools.
                    server.wait_until(
                        lambda: sum(use.hours for use in pages.days(0)) >= 2 * 47, what="hours are stored"
                    )
                finally:
                    server.stop()
        finally:
            prometheus.stop()
    assert {use.pool for use in pages.days(0)} > {GONE}
    shown = CliRunner().invoke(app, ["utilisation", "show", "--every", "whole", "-o", "json"])
    assert shown.exit_code == 0, shown.output
    held = [row for row in json.loads(shown.stdout)["rows"] if row["pool"] != GONE]
    assert [row["gpus"] for row in held] == [pytest.approx(2.0, rel=0.03)], "the first hour was not recorded as a whole"
    assert held[0]["p95"] == pytest.approx(0.9, abs=0.05)
    seen = audited(control_plane, ACCOUNT, started)
    assert_refused_nothing(seen)
    assert ("list", "resourceflavors") in {(event["verb"], event["objectRef"]["resource"]) for event in seen}
