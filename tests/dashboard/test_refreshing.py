"""Feeds in the background: each is refreshed by itself, whatever the others do."""

import asyncio
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import pytest

from kopt.dashboard.app import pages_client
from kopt.dashboard.budget import CpuBudget
from kopt.dashboard.data.feed import Feed
from kopt.dashboard.data.histories import FolderHistories
from kopt.dashboard.data.snapshot import SNAPSHOT
from kopt.dashboard.live import LiveSource

EVERY_S = 0.02


async def test_one_that_is_slow_or_broken_keeps_no_other_from_what_is_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refreshed = Counter[str]()

    class Named:
        def __init__(self, name: str) -> None:
            self._name = name

        async def refresh(self) -> None:
            refreshed[self._name] += 1
            if self._name == "slow":
                await asyncio.Event().wait()
            if self._name == "broken":
                raise RuntimeError("unforeseen")

        async def latest(self) -> int:
            return refreshed[self._name]

    def feed(name: str) -> Feed[Any]:
        return Feed(name, int, lambda _: Named(name), lambda value, _: value)

    monkeypatch.setattr("kopt.dashboard.live.FEEDS", [feed(name) for name in ("slow", "broken", "quick")])
    client = pages_client("http://127.0.0.1:9")
    live = LiveSource(FolderHistories(tmp_path), client, None, url="http://127.0.0.1:9", home=tmp_path)
    running = asyncio.create_task(live.run(EVERY_S))
    async with asyncio.timeout(20):
        while min(refreshed["quick"], refreshed["broken"]) < 3:
            await asyncio.sleep(EVERY_S)
    assert refreshed["slow"] == 1
    async with asyncio.timeout(20):
        while not (await live.latest(SNAPSHOT)).problems:
            await asyncio.sleep(EVERY_S)
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running
    await client.close()


class Machine:
    """A clock that goes on only with what is computed and slept."""

    def __init__(self) -> None:
        self.now_s = self.cpu_s = 0.0
        self.pauses_s: list[float] = []
        self.budget = CpuBudget(lambda: self.now_s, lambda: self.cpu_s, self._sleep)

    def compute(self, seconds: float) -> None:
        self.now_s += seconds
        self.cpu_s += seconds

    async def _sleep(self, seconds: float) -> None:
        self.pauses_s.append(seconds)
        self.now_s += seconds
        await asyncio.sleep(0)


@pytest.mark.parametrize("costs_s", [0.1, 5.0, 30.0])
async def test_news_without_end_takes_a_third_of_a_core_whatever_a_refresh_costs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, costs_s: float
) -> None:
    """As in a large cluster, where something always changes: of two kinds of news, and besides by the clock."""
    machine, refreshed = Machine(), Counter[str]()

    class Costly:
        def __init__(self, name: str) -> None:
            self._name = name

        async def refresh(self) -> None:
            refreshed[self._name] += 1
            machine.compute(costs_s)

        async def latest(self) -> int:
            return refreshed[self._name]

    async def always(_: object) -> None:
        await asyncio.sleep(0)

    async def often(_: object) -> None:
        await asyncio.sleep(0)

    def feed(name: str, news: Any) -> Feed[Any]:
        return Feed(name, int, lambda _: Costly(name), lambda value, _: value, int.__ne__, news, between_s=0)

    monkeypatch.setattr("kopt.dashboard.live.FEEDS", [feed("quotas", always), feed("gpus", often)])
    client, cluster = pages_client("http://127.0.0.1:9"), cast(Any, object())
    home, url = tmp_path, "http://127.0.0.1:9"
    live = LiveSource(FolderHistories(home), client, None, url=url, home=home, cluster=cluster, budget=machine.budget)
    tasks = [asyncio.create_task(live.follow()), asyncio.create_task(live.run(0.0))]
    async with asyncio.timeout(20):
        while min(refreshed["quotas"], refreshed["gpus"]) < 20:
            await asyncio.sleep(0)
    for task in tasks:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
    await client.close()
    assert machine.cpu_s <= machine.now_s / 3 + 4 * costs_s
    assert machine.cpu_s >= machine.now_s / 3 - 4 * costs_s, "and no less"


async def test_a_slow_server_costs_the_pages_nothing() -> None:
    machine = Machine()
    for _ in range(3):
        async with machine.budget.spent():
            machine.now_s += 57.0
            machine.compute(3.0)
    assert machine.pauses_s == []


async def test_what_several_do_at_once_counts_once() -> None:
    machine = Machine()
    async with machine.budget.spent():
        async with machine.budget.spent():
            machine.compute(3.0)
        machine.compute(1.0)
    async with machine.budget.spent():
        assert sum(machine.pauses_s) == pytest.approx(2 * 4.0)
