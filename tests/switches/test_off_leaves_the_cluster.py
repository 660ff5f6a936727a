"""Every feature that acts, switched off: its process writes nothing on what is not ours, until it is switched on."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from kopt.cluster.client.resources import FEATURE_ROLLOUTS
from kopt.controllers.specs import CONTROLLERS
from kopt.core.switches import FEATURES, features_of

from .acting import ACTING, Acting, Watched, rollout

PATIENCE_S = 60.0
RECORDS = {"evictions": "writes Evictions alone", "ingest": "writes nothing", "runs": "writes nothing"}
"""Controllers that act on nothing of others."""
ELSEWHERE = {"queues", "schedulers", "pools", "sizing", "fractions", "devices", "placement", "autoscaling", "diagnoses"}
"""Features whose component answers calls; their tests are further down, and of the pages' in ``tests/diagnosis``."""

each = pytest.mark.parametrize("acting", ACTING, ids=lambda one: f"{one.feature}: {one.scenario.name}")


def test_every_feature_has_a_test_and_every_controller_a_switch() -> None:
    assert {acting.feature for acting in ACTING} | ELSEWHERE == {feature.name for feature in FEATURES}
    assert not {acting.feature for acting in ACTING} & ELSEWHERE
    for spec in CONTROLLERS:
        assert bool(features_of(spec.name)) is (spec.name not in RECORDS), spec.name


async def until(condition: Callable[[], Any], task: "asyncio.Task[None]") -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            if task.done():
                task.result()
            await asyncio.sleep(0.005)


@each
def test_what_is_off_writes_nothing_until_it_is_on(acting: Acting, monkeypatch: pytest.MonkeyPatch) -> None:
    asyncio.run(_off_then_on(acting, monkeypatch))


async def _off_then_on(acting: Acting, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = _counted(acting, monkeypatch)
    kube = Watched()
    acting.scenario.fill(kube)
    kube.put(FEATURE_ROLLOUTS, rollout(**{acting.feature: 0}))
    kube.filled()
    replica = acting.scenario.start(kube)
    task = asyncio.create_task(replica.run())
    try:
        await until(lambda: looks() > 0, task)
        # Whatever other switch is set has everything decided anew.
        for number in range(1, 4):
            before = looks()
            kube.put(FEATURE_ROLLOUTS, rollout(**{acting.feature: 0, "unknown": number}))
            await until(lambda: looks() > before, task)  # noqa: B023 - called before the next
        written = [line for line in kube.written if not acting.held or acting.held not in line]
        assert written == []
        if acting.held:
            assert kube.written, "what was held is released"
            return
        kube.put(FEATURE_ROLLOUTS, rollout(**{acting.feature: 100}))
        await until(lambda: acting.scenario.handled(kube), task)
        assert kube.written
        kube.put(FEATURE_ROLLOUTS, rollout(**{acting.feature: 0}))
        await until(lambda: acting.undone(kube), task)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await replica.stop()


def _counted(acting: Acting, monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    count = 0
    kind, name = acting.looks
    original = getattr(kind, name)

    async def counted(*args: Any, **options: Any) -> Any:
        nonlocal count
        try:
            return await original(*args, **options)
        finally:
            count += 1

    monkeypatch.setattr(kind, name, counted)
    return lambda: count
