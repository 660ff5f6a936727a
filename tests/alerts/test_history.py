"""``kopt alerts history`` and ``acknowledge`` on what a real Prometheus keeps of alerts."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_server import RunningPrometheus
from typer.testing import CliRunner

from kopt.cli.alerts.acknowledgements import KEEP_S, Acknowledgements
from kopt.cli.main import app
from kopt.core.alerts.acknowledgement import Acknowledgement
from kopt.core.alerts.episodes import Episode, episodes, with_firing
from tests.gpu_history import EVERY_S, Metric, history

LABELS = {"alertname": "KoptGpuIdle", "severity": "info", "namespace": "research"}


def test_an_alert_that_fires_again_is_two_episodes() -> None:
    times_s = [60.0, 120, 180, 600, 660]
    last, first = episodes([({"__name__": "ALERTS", **LABELS}, times_s)], 60, 720)
    assert (first.fired_s, first.resolved_s) == (60, 240)
    assert (last.fired_s, last.resolved_s) == (600, None)
    assert first.identity == last.identity
    assert (first.alert, first.severity, first.about) == ("KoptGpuIdle", "info", "namespace=research")
    assert [each.resolved_s for each in episodes([(LABELS, times_s)], 60, 900)] == [720, 240]
    (other,) = episodes([({**LABELS, "namespace": "vision"}, [60.0])], 60, 60)
    assert other.identity != first.identity


@given(st.sets(st.integers(0, 200), min_size=1))
def test_episodes_are_apart_and_cover_every_sample(samples: set[int]) -> None:
    listed = episodes([(LABELS, [60.0 * at for at in samples])], 60, 12_000)
    for at in samples:
        assert sum(each.fired_s <= 60 * at < (each.resolved_s or 1e9) for each in listed) == 1
    assert sum(each.resolved_s is None for each in listed) == (199 in samples or 200 in samples)


def test_what_fires_is_what_fires_now() -> None:
    listed = episodes([(LABELS, [60.0, 120, 600, 660])], 60, 720)
    assert [each.resolved_s for each in with_firing(listed, [LABELS], 730)] == [None, 180]
    assert [each.resolved_s for each in with_firing(listed, [], 730)] == [730, 180]
    new = {"__name__": "ALERTS", **LABELS, "namespace": "vision"}
    begun, *_ = with_firing(listed, [LABELS, new], 730)
    assert (begun.about, begun.fired_s, begun.resolved_s) == ("namespace=vision", 730, None)


def test_an_acknowledgement_counts_until_the_alert_is_resolved() -> None:
    episode = Episode(tuple(sorted(LABELS.items())), 600, 900)
    assert [episode.has(at_s, 60) for at_s in (500, 545, 700, 955, 970)] == [False, True, True, True, False]


def test_words_of_several_stay_and_old_ones_go(tmp_path: Path) -> None:
    for _ in range(2):
        store = Acknowledgements(tmp_path / "alerts.db")
        store.add(Acknowledgement("a", 100.0, "ada", "looking"))
        store.add(Acknowledgement("a", 100.0, "bob"))
        store.close()
    store = Acknowledgements(tmp_path / "alerts.db")
    assert [each.who for each in store.since(0)] == ["ada", "bob"]
    store.add(Acknowledgement("b", 101.0 + KEEP_S, "ada"))
    assert [each.identity for each in store.since(0)] == ["b"]
    store.close()


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """One of ours that fires, one that was resolved an hour ago, and somebody else's."""
    nan = float("nan")
    of = {"alertstate": "firing"}
    metrics = (
        Metric("ALERTS", {**LABELS, **of}, 1.0, 3600),
        Metric("ALERTS", {**LABELS, **of, "namespace": "vision"}, lambda left: 1.0 if left > 3600 else nan, 7200),
        Metric("ALERTS", {**of, "alertname": "Others"}, 1.0, 3600),
        Metric("ALERTS", {**LABELS, **of, "namespace": "short"}, lambda left: 1.0 if left == 7200 else nan, 7200),
        Metric("ALERTS", {**LABELS, "alertstate": "pending", "namespace": "later"}, 1.0, 3600),
    )
    server = RunningPrometheus(tmp_path_factory.mktemp("prometheus"), history(*metrics))
    yield server.url
    server.stop()


def rows(prometheus: str, *options: str) -> list[dict[str, Any]]:
    asked = ["alerts", "history", "--prometheus", prometheus, "--since", "6h", "-o", "json", *options]
    result = CliRunner().invoke(app, asked)
    assert result.exit_code == 0, result.output
    listed: list[dict[str, Any]] = json.loads(result.stdout)["alerts"]
    return listed


@pytest.mark.services
def test_what_fires_is_acknowledged_and_what_is_over_is_resolved(
    prometheus: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KOPT_STATE_DIR", str(tmp_path))
    monkeypatch.delenv("KOPT_DATABASE_URL", raising=False)
    by_about = {row["about"]: row for row in rows(prometheus)}
    fires, over = by_about["namespace=research"], by_about["namespace=vision"]
    assert (len(by_about), fires["resolved"], fires["acknowledged"]) == (3, "", "")
    # Between two samples of a month, 22 minutes apart.
    month = {row["about"]: row for row in rows(prometheus, "--since", "30d")}
    assert month["namespace=short"]["resolved"]
    assert over["resolved"]
    assert over["seconds"] == pytest.approx(3600, abs=2 * EVERY_S)
    assert {row["alert"] for row in rows(prometheus, "--all")} == {"KoptGpuIdle", "Others"}
    asked = ["alerts", "acknowledge", fires["id"], "--prometheus", prometheus, "--by", "ada", "--note", "drained"]
    result = CliRunner().invoke(app, asked)
    assert result.exit_code == 0, result.output
    assert {row["about"]: row["acknowledged"] for row in rows(prometheus)} == {
        "namespace=research": "ada: drained",
        "namespace=short": "",
        "namespace=vision": "",
    }
    refused = CliRunner().invoke(app, ["alerts", "acknowledge", over["id"], "--prometheus", prometheus])
    assert refused.exit_code == 1
    assert "fires now; there are" in " ".join(refused.output.split())
