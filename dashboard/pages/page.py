"""What a page says of itself; ``pages.PAGES`` lists all of them."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from fastapi import Request
from fastapi.responses import Response
from starlette.datastructures import QueryParams

from kopt.core.settings import Settings
from kopt.dashboard.data.feed import AnyFeed, Feed, Source
from kopt.dashboard.data.sources import Snapshot

T = TypeVar("T")
LONGEST_SEARCH = 253
Content = Mapping[str, Any]
"""What the template shows, beside the snapshot."""


@dataclass(frozen=True)
class PageRequest:
    """A request for a page, and the data that it may show: ``snapshot`` and what its feeds hold."""

    request: Request
    snapshot: Snapshot
    source: Source
    settings: Settings

    @property
    def query(self) -> QueryParams:
        return self.request.query_params

    @property
    def search(self) -> str:
        """The text that the reader searches for."""
        return self.query.get("q", "")[:LONGEST_SEARCH]

    async def latest(self, feed: Feed[T]) -> T:
        return await self.source.latest(feed)

    def choice(self, name: str, offered: Sequence[Any], otherwise: Any) -> Any:
        """The offered value that the query names, else the default."""
        return next((value for value in offered if self.query.get(name) == f"{value:g}"), otherwise)


View = Callable[[PageRequest], Awaitable[Content | Response]]


@dataclass(frozen=True)
class Page:
    """A page at ``path``. ``view`` gives the content of ``template``, or an answer of another kind.

    ``title`` is its word in the navigation, empty for a page that another one leads to. ``aliases`` are further
    addresses of the same page, ``documents`` those of its data. Pages whose path begins with ``covers`` belong to the
    same entry of the navigation. ``predictors`` are those whose answers it shows; the footer names their versions.
    """

    path: str
    template: str
    view: View
    title: str = ""
    feeds: tuple[AnyFeed, ...] = ()
    aliases: tuple[str, ...] = ()
    documents: Mapping[str, Callable[[PageRequest], Awaitable[Response]]] = field(default_factory=dict)
    covers: str = ""
    takes_forms: bool = False
    predictors: tuple[str, ...] = ()

    @property
    def followed(self) -> AnyFeed | None:
        """The feed whose changes an open page hears of; None for one that asks every now and then."""
        return next((feed for feed in self.feeds if feed.has_changed is not None), None)

    @property
    def events(self) -> str:
        """Where it hears of them; empty where it does not."""
        return "" if self.followed is None else f"{self.path}/events"

    def is_current(self, path: str) -> bool:
        """Does an address belong to the page's entry of the navigation?"""
        return path == self.path or bool(self.covers and path.startswith(self.covers))
