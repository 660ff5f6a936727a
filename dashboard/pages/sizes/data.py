"""The sizes that the endpoint recommends."""

from dataclasses import dataclass

from kopt.dashboard.data.feed import Answer, Connections, Feed, Polled
from kopt.serving.contract.size_advice import SizeAdvice


@dataclass(frozen=True)
class Sizes(Answer):
    """The newest size of every job type that was asked about, newest first, or what kept them away."""

    found: tuple[SizeAdvice, ...] = ()


def _open(connections: Connections) -> Polled[Sizes]:
    async def ask() -> Sizes:
        return Sizes(await connections.client.sizes())

    return Polled(Sizes(), ask, connections.clock)


SIZES: Feed[Sizes] = Feed("sizes", Sizes, _open)
