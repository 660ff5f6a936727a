"""Feeds in the background: each is refreshed by itself, whatever the others do."""

import asyncio
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import pytest

from kopt.dashboard.app import pages_client
from kopt.dashboard.data.feed import Feed
from kopt.dashboard.data.histories import FolderHistories
from kopt.dashboard.data.snapshot import SNAPSHOT
from kopt.dashboard.live import LiveSource

EVERY_S, TAKES_S = 0.02, 0.05


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


async def test_news_without_end_leaves_most_of_a_core_to_the_pages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a large cluster, where something always changes."""
    refreshed = 0

    class Costly:
        async def refresh(self) -> None:
            nonlocal refreshed
            refreshed += 1
            await asyncio.sleep(TAKES_S)

        async def latest(self) -> int:
            return refreshed

    async def always(_: object) -> None:
        await asyncio.sleep(0)

    feed: Feed[Any] = Feed("costly", int, lambda _: Costly(), lambda value, _: value, int.__ne__, always, between_s=0)
    monkeypatch.setattr("kopt.dashboard.live.FEEDS", [feed])
    client, cluster = pages_client("http://127.0.0.1:9"), cast(Any, object())
    live = LiveSource(FolderHistories(tmp_path), client, None, url="http://127.0.0.1:9", home=tmp_path, cluster=cluster)
    following = asyncio.create_task(live.follow())
    await asyncio.sleep(20 * TAKES_S)
    following.cancel()
    with suppress(asyncio.CancelledError):
        await following
    await client.close()
    assert 2 <= refreshed <= 8, "a third of twenty, and not twenty"
