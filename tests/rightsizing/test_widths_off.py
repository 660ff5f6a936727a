"""Switching off gives back a width that nobody watches: at a safe moment if one comes soon, and else at any."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from copy import deepcopy
from typing import Any

import pytest

from kopt.cluster.client.api import Page, Patch
from kopt.cluster.client.errors import ApiError, Forbidden
from kopt.cluster.client.resources import (
    COMPONENT_LABEL,
    DAEMON_SETS,
    DEPLOYMENTS,
    JOBS,
    PART_OF,
    PART_OF_LABEL,
    PODS,
    POLICIES_COMPONENT,
    VALIDATING_POLICY_BINDINGS,
    Object,
    Resource,
)
from kopt.cluster.teardown import widths
from kopt.cluster.teardown.components import GUARD_COMPONENT
from kopt.cluster.teardown.steps import Outcome as Done
from kopt.cluster.teardown.switch_off import switch_off
from kopt.cluster.teardown.widths import undo_widths
from kopt.cluster.workloads.resizing.elastic import width_of_object
from kopt.cluster.workloads.resizing.width import ResizedWidth
from kopt.core.workload.rightsizing import Batch, Outcome, WidthChange

from .test_width_watch import Training, when


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
    await when(lambda: _safe_on(training) == ["false"] * 3)
    yield training
    going_on.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await going_on


def _safe_on(train: Training) -> list[str]:
    """What the log agent says, pod by pod."""
    annotations = [each["metadata"].get("annotations") or {} for each in train.kube.all(PODS)]
    return [each["kaiwo.ai/checkpoint-safe"] for each in annotations if "kaiwo.ai/checkpoint-observed-at" in each]


def _counted_reads(
    train: Training, monkeypatch: pytest.MonkeyPatch, failing: Callable[[int], ApiError | None] = lambda _: None
) -> list[int]:
    """Grows with each list of pods; ``failing`` gives what the server says to the first, the second, and so on."""
    reads: list[int] = []
    pages = train.kube.pages

    async def counted(resource: Resource, *given: Any, **more: Any) -> AsyncIterator[Page]:
        if resource == PODS:
            reads.append(len(reads))
            if (error := failing(reads[-1])) is not None:
                raise error
        async for page in pages(resource, *given, **more):
            yield page

    monkeypatch.setattr(train.kube, "pages", counted)
    return reads


async def _off(train: Training, within_s: float, *, dry_run: bool = False) -> list[Done]:
    kube: Any = train.kube
    return [each async for each in undo_widths(kube, dry_run, within_s)]


async def test_it_waits_for_a_safe_moment(train: Training, monkeypatch: pytest.MonkeyPatch) -> None:
    reads = _counted_reads(train, monkeypatch)
    off = asyncio.create_task(_off(train, 10.0))
    await when(lambda: len(reads) > 3)
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
    train.report(time.time())
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


async def test_who_may_not_list_pods_gives_it_back_at_once(train: Training, monkeypatch: pytest.MonkeyPatch) -> None:
    _counted_reads(train, monkeypatch, lambda _: Forbidden(403, "Forbidden", "pods may not be listed"))
    async with asyncio.timeout(5):
        assert [each.error for each in await _off(train, 60.0)] == [""]
    assert (train.width, train.outcomes()) == (2, [Outcome.UNDONE])


async def test_a_server_that_fails_meanwhile_is_asked_again(train: Training, monkeypatch: pytest.MonkeyPatch) -> None:
    failing = lambda number: ApiError(500, "InternalError", "etcd has no leader") if number < 3 else None  # noqa: E731
    reads = _counted_reads(train, monkeypatch, failing)
    off = asyncio.create_task(_off(train, 60.0))
    await when(lambda: len(reads) > 4)
    assert (train.width, off.done()) == (3, False)
    train.safe = "true"
    assert [each.error for each in await off] == [""]
    assert train.width == 2


async def test_many_jobs_are_told_of_as_they_end_and_take_turns_at_the_server(
    train: Training, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The training is never safe; of the others no log agent says anything, and one is nonsense."""
    kube, at_work, most = train.kube, 0, 0
    for number in range(40):
        copy = deepcopy(train.document())
        copy["metadata"] |= {"name": f"job-{number}", "uid": f"uid-{number}"}
        kube.put(JOBS, copy)
    get = kube.get

    async def slowly(resource: Resource, name: str, *given: Any, **more: Any) -> Object:
        nonlocal at_work, most
        at_work += 1
        most = max(most, at_work)
        await asyncio.sleep(0.001)
        at_work -= 1
        if name == "job-7":
            raise RuntimeError("unforeseen")
        return await get(resource, name, *given, **more)

    monkeypatch.setattr(kube, "get", slowly)
    started: Any = kube
    outcomes = [each async for each in undo_widths(started, False, 1.0)]
    assert outcomes[-1].step.name == "train", "the slowest comes last"
    assert {each.step.name: each.error for each in outcomes if each.error} == {
        "job-7": "it cannot be worked with (RuntimeError: unforeseen)"
    }
    assert len(outcomes) == 41
    assert train.width == 2
    assert most <= 16


def _installed(train: Training) -> None:
    """A controller, a log agent, the guard of annotations and a compiled compliance policy."""
    ours = {PART_OF_LABEL: PART_OF}

    def metadata(component: str, **more: str) -> Object:
        return {"metadata": {"name": component, "labels": ours | {COMPONENT_LABEL: component}, **more}}

    train.kube.put(DEPLOYMENTS, metadata("lending", namespace="kopt") | {"spec": {"replicas": 2}})
    train.kube.put(DAEMON_SETS, metadata("logtail", namespace="kopt") | {"spec": {}})
    for component in (GUARD_COMPONENT, POLICIES_COMPONENT):
        train.kube.put(VALIDATING_POLICY_BINDINGS, metadata(component))


async def test_controllers_stop_at_once_and_guarded_until_they_have(train: Training) -> None:
    """A job that is never safe keeps no controller acting, and nobody may forge what controllers act on."""
    _installed(train)
    kube: Any = train.kube
    steps, widths_then = [], []
    async for outcome in switch_off(kube, held_kinds=(), wait_s=0.3):
        steps.append(outcome.step.name)
        widths_then.append(train.width)
        assert outcome.error == ""
    assert steps == [POLICIES_COMPONENT, "lending", "train", "logtail", GUARD_COMPONENT]
    assert widths_then == [3, 3, 2, 2, 2]


async def test_a_dry_run_only_names_it(train: Training) -> None:
    assert [(each.step.detail, each.error) for each in await _off(train, 60.0, dry_run=True)] == [("its width", "")]
    assert (train.width, train.outcomes()) == (3, [Outcome.OPEN])
