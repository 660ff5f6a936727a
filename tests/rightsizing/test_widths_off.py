"""Switching off gives back a width that nobody watches: at a safe moment if one comes soon, and else at any."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from kopt.cluster.client.api import Patch
from kopt.cluster.client.errors import Forbidden
from kopt.cluster.client.resources import JOBS, Object
from kopt.cluster.teardown import widths
from kopt.cluster.teardown.steps import Outcome as Done
from kopt.cluster.teardown.widths import undo_widths
from kopt.cluster.workloads.resizing.elastic import width_of_object
from kopt.cluster.workloads.resizing.width import ResizedWidth
from kopt.core.workload.rightsizing import Batch, Outcome, WidthChange

from .test_width_watch import STEP_S, Training


@pytest.fixture
async def train(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Training]:
    """With three workers instead of two, by a command that was killed."""
    monkeypatch.setattr(widths, "_POLL_S", 0.02)
    training = Training(safe="false")
    kube: Any = training.kube
    resized = ResizedWidth(
        kube, width_of_object(JOBS, training.document()), WidthChange(2, 3, Batch.PER_WORKER), time.time
    )
    await resized.open(time.time())
    await resized.apply()
    going_on = asyncio.create_task(training.run())
    await asyncio.sleep(0.15)
    assert training.width == 3
    yield training
    going_on.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await going_on


async def _off(train: Training, within_s: float, *, dry_run: bool = False) -> list[Done]:
    kube: Any = train.kube
    return [each async for each in undo_widths(kube, dry_run, within_s)]


async def test_it_waits_for_a_safe_moment(train: Training) -> None:
    off = asyncio.create_task(_off(train, 10.0))
    await asyncio.sleep(0.2)
    assert (train.width, off.done()) == (3, False)
    train.safe = "true"
    async with asyncio.timeout(2):
        assert [(each.step.name, each.error) for each in await off] == [("train", "")]
    assert (train.width, train.outcomes()) == (2, [Outcome.UNDONE])


async def test_where_none_comes_it_is_given_back_at_any(train: Training) -> None:
    began_s = time.monotonic()
    assert [each.error for each in await _off(train, 0.3)] == [""]
    assert 0.3 <= time.monotonic() - began_s < 2
    assert (train.width, train.outcomes()) == (2, [Outcome.UNDONE])


async def test_without_a_word_of_the_log_agents_it_does_not_wait(train: Training) -> None:
    train.seen_s = 600.0
    await asyncio.sleep(3 * STEP_S)
    async with asyncio.timeout(2):
        await _off(train, 60.0)
    assert train.width == 2


async def test_who_may_not_change_it_says_so_at_once(train: Training, monkeypatch: pytest.MonkeyPatch) -> None:
    patch = train.kube.patch

    async def refused(*given: Any, **more: Any) -> Object:
        if more.get("kind") is Patch.JSON:
            raise Forbidden(403, "Forbidden", "jobs may not be patched")
        return await patch(*given, **more)

    monkeypatch.setattr(train.kube, "patch", refused)
    async with asyncio.timeout(2):
        assert "may not be patched" in (await _off(train, 60.0))[0].error
    assert (train.width, train.outcomes()) == (3, [Outcome.OPEN])


async def test_a_dry_run_only_names_it(train: Training) -> None:
    assert [(each.step.detail, each.error) for each in await _off(train, 60.0, dry_run=True)] == [("its width", "")]
    assert (train.width, train.outcomes()) == (3, [Outcome.OPEN])
