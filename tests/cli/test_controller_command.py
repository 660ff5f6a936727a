"""``kopt controller NAME`` reads its options into the settings of the controller, and refuses what cannot be meant."""

from collections.abc import Callable
from typing import Any

import pytest
from typer.testing import CliRunner

from kopt.cli.cluster import controller
from kopt.cli.main import app
from kopt.cli.options import seconds, span_text
from kopt.core.decision import Mode

Run = Callable[..., Any]


@pytest.fixture
def settings_of(monkeypatch: pytest.MonkeyPatch) -> Run:
    """``settings_of("sizing", …)``: what the controller would be started with."""
    started: list[Any] = []
    monkeypatch.setattr(controller, "_serve", lambda spec, settings: started.append(settings))
    monkeypatch.delenv("POD_NAME", raising=False)
    monkeypatch.delenv("POD_NAMESPACE", raising=False)

    def run(*arguments: str) -> Any:
        done = CliRunner().invoke(app, ["controller", *arguments])
        assert done.exit_code == 0, done.output
        return started.pop()

    return run


def test_spans_and_sizes_become_numbers_and_an_empty_text_means_none(settings_of: Run) -> None:
    settings = settings_of("staging", "--image=x", "--node-budget=2TiB", "--stalled=10m", "--mode=enforce")
    rules = settings.staging.rules
    assert (rules.node_budget_bytes, rules.stalled_s, rules.keep_unused_s) == (2 << 40, 600.0, None)
    assert settings.staging.mode is Mode.ENFORCE
    assert settings_of("staging", "--image=x", "--keep-unused=7d").staging.rules.keep_unused_s == 7 * 86400
    assert settings_of("staging", "--image=x", "--keep-unused=").staging.rules.keep_unused_s is None


def test_a_replica_is_named_by_its_pod(settings_of: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    assert settings_of("lending").identity, "the host's name and the process, where there is no pod"
    monkeypatch.setenv("POD_NAME", "kopt-reallocation-0")
    monkeypatch.setenv("POD_NAMESPACE", "elsewhere")
    settings = settings_of("lending", "--refresh=5s", "--workload-mode=Any")
    assert (settings.identity, settings.namespace) == ("kopt-reallocation-0", "elsewhere")
    assert (settings.controller.refresh_s, settings.controller.workload_may_lower) == (5.0, True)


def test_switches_and_lists_arrive(settings_of: Run) -> None:
    sizing = settings_of(
        "sizing", "--agent-image=x", "--fractions", "--no-secrets", "--host-paths=/data,/models"
    ).sizing
    assert (sizing.profiling.fractions, sizing.dry_run.allow_secrets) == (True, False)
    assert sizing.dry_run.host_paths == ("/data", "/models")
    assert settings_of("sizing", "--agent-image=x").sizing.dry_run.host_paths is None
    preemption = settings_of("preemption", "--plain-pods", "--service=kopt-preemption", "--mode=enforce")
    assert (preemption.plain_pods, preemption.kai) == (True, False)
    assert preemption.hold.names == ("kopt-preemption.kopt-system.svc",)


@pytest.mark.parametrize(
    ("arguments", "option"),
    [
        (("lending", "--refresh=soon"), "--refresh"),
        (("lending", "--refresh="), "--refresh"),
        (("lending", "--refresh=10m"), "--refresh"),
        (("lending", "--workload-mode=Never"), "--workload-mode"),
        (("sizing",), "--agent-image"),
        (("sizing", "--agent-image=x", "--interval=2"), "--interval"),
        (("sizing", "--agent-image=x", "--host-paths=/"), "--host-paths"),
        (("sizing", "--agent-image=x", "--duration=1h"), "--budget"),
        (("preemption", "--mode=on"), "--mode"),
        (("preemption", "--mode=enforce"), "--mode"),
        (("preemption", "--url=http://host"), "--url"),
        (("evictions", "--most=0"), "--most"),
        (("staging", "--image=x", "--cache-path=/"), "--cache-path"),
        (("staging", "--image=x", "--node-budget=much"), "--node-budget"),
        (("staging", "--image=x", "--at-once=0"), "--at-once"),
    ],
)
def test_wrong_options_are_named(arguments: tuple[str, ...], option: str) -> None:
    done = CliRunner().invoke(app, ["controller", *arguments])
    assert done.exit_code == 2
    assert option in done.output


@pytest.mark.parametrize("text", ["1s", "90s", "5m", "12h", "30d"])
def test_a_default_is_shown_as_it_would_be_typed(text: str) -> None:
    assert seconds(span_text(seconds(text, "")), "") == seconds(text, "")
    assert len(span_text(seconds(text, ""))) <= len(text)
