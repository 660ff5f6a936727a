"""A source of the pages with made-up data; feeds that are not named are empty."""

import asyncio
from collections.abc import Mapping
from typing import Any, TypeVar

from kopt.dashboard.data.feed import AnyFeed, Feed

T = TypeVar("T")


class FixedSource:
    def __init__(self, values: Mapping[AnyFeed, Any]) -> None:
        self.values = dict(values)

    async def latest(self, feed: Feed[T]) -> T:
        value: T = self.values[feed] if feed in self.values else feed.empty()
        return value

    async def next_change(self, feed: Feed[T], seen: int) -> int:
        """It never changes."""
        await asyncio.Event().wait()
        return seen
