"""The sizes that the endpoint recommends."""

from dataclasses import dataclass, replace

from kopt.dashboard.data.access import Holds, pods_in
from kopt.dashboard.data.feed import Answer, Connections, Feed, Polled
from kopt.serving.contract.size_advice import SizeAdvice


@dataclass(frozen=True)
class Sizes(Answer):
    """The newest size of every job type that was asked about, newest first, or what kept them away."""

    sizes: tuple[SizeAdvice, ...] = ()


def _open(connections: Connections) -> Polled[Sizes]:
    async def ask() -> Sizes:
        return Sizes(await connections.client.sizes())

    return Polled(Sizes(), ask, connections.clock)


def _restrict(sizes: Sizes, holds: Holds) -> Sizes:
    """Those that were asked about for no namespace are for those who see all of them."""
    return replace(sizes, sizes=tuple(size for size in sizes.sizes if holds(pods_in(size.namespace))))


SIZES: Feed[Sizes] = Feed("sizes", Sizes, _open, _restrict)
