"""Both ends of the way: a Prometheus server and the prediction endpoint."""

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from kopt.cluster.client.prometheus import Prometheus, token_of
from kopt.controllers.ingest.grouping import Read, ReadGroup
from kopt.controllers.ingest.ingester import Push
from kopt.controllers.ingest.prometheus import DemandQueries

_PUSH_S = 30.0
"""The deadline of a push: the first one finds an endpoint that is still opening its store."""
_LONGEST_PAUSE_S = 60.0


@dataclass(frozen=True)
class Connections:
    """What an Ingester reads from and pushes to."""

    read: Read
    push: Push
    read_group: ReadGroup


@contextlib.asynccontextmanager
async def connected(
    prometheus: str, predictions: str, token_file: Path | None = None, authority: Path | None = None
) -> AsyncIterator[Connections]:
    """Connections to ``prometheus``, with the token in a file, and to ``predictions``, as its client does it."""
    # Not before it is needed: every `kopt` reads the list of controllers.
    from kopt.serving.client.client import AsyncPredictionClient

    async with (
        Prometheus(prometheus, token=token_of(token_file), authority=authority) as server,
        AsyncPredictionClient(predictions, deadline_s=_PUSH_S, longest_pause_s=_LONGEST_PAUSE_S) as client,
    ):
        queries = DemandQueries(server)
        yield Connections(queries.buckets, client.push_demand, queries.grouped)
