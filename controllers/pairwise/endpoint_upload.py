"""Measured pairs to the prediction endpoint: all at the start and when nodes were unknown there, later what is new.

Sending again is harmless, so what the endpoint did not take is simply sent with the next batch.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Protocol

from kopt.cluster.client.resources import Object
from kopt.cluster.objects.custom.node_bandwidth import bandwidth_of, key
from kopt.cluster.objects.custom.node_topology import topology_of
from kopt.cluster.runtime.informer import Change, Informer
from kopt.core.hardware.bandwidth import BandwidthError
from kopt.core.hardware.node_topology import NodeTopology
from kopt.core.hardware.pairwise import MeasuredPair
from kopt.serving.client.transport import EndpointFailure, RequestRefused
from kopt.serving.contract.bandwidth.pairwise_answers import PairsKept
from kopt.serving.contract.common import AnswerError

_LOG = logging.getLogger(__name__)
MOST_PAIRS, MOST_TOPOLOGIES = 500, 50
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 2.0, 300.0
Levels = Callable[[Collection[str]], Mapping[str, Sequence[str]]]
"""The network levels of nodes, outermost first."""


class Send(Protocol):
    """``AsyncPredictionClient.tell_pairs``."""

    def __call__(
        self,
        cluster: str,
        pairs: Sequence[MeasuredPair],
        topologies: Mapping[str, NodeTopology] | None = None,
        *,
        domains: Mapping[str, Sequence[str]] | None = None,
    ) -> Awaitable[PairsKept]: ...


class Sender:
    """``run`` sends until cancelled. ``topologies`` is the informer of NodeTopologies."""

    def __init__(
        self,
        cluster: str,
        send: Send,
        bandwidths: Informer[Object],
        topologies: Informer[Object],
        levels: Levels = lambda _: {},
        first_pause_s: float = _FIRST_PAUSE_S,
    ) -> None:
        self._cluster, self._send, self._levels, self._first_pause_s = cluster, send, levels, first_pause_s
        self._bandwidths, self._topologies = bandwidths, topologies
        self._queue: dict[Any, MeasuredPair] = {}
        self._wanted: set[str] = set()
        self._news = asyncio.Event()
        topologies.subscribe(self._topology_came)

    async def run(self) -> None:
        self._again()
        unsubscribe = self._bandwidths.subscribe(self._changed)
        try:
            await self._forever()
        finally:
            unsubscribe()

    async def _forever(self) -> None:
        pause_s = self._first_pause_s
        while True:
            await self._news.wait()
            self._news.clear()
            try:
                while self._queue:
                    await self._batch()
                pause_s = self._first_pause_s
            except EndpointFailure as failure:
                _LOG.info("measured pairs wait for the endpoint: %s", failure)
                self._news.set()
                await asyncio.sleep(failure.retry_after_s or pause_s)
                pause_s = min(_LONGEST_PAUSE_S, 2 * pause_s)

    async def _batch(self) -> None:
        batch = dict(list(self._queue.items())[:MOST_PAIRS])
        documents = dict(self._documents())
        names = {name for item in batch.values() for name in item.nodes}
        unknown: Sequence[str] = ()
        try:
            kept = await self._send(self._cluster, list(batch.values()), documents, domains=self._levels(names))
            unknown = kept.unknown_nodes
        except (RequestRefused, AnswerError) as refused:
            # Asking again would not help; the rest may still be fine.
            _LOG.warning("the endpoint refuses %d measured pairs: %s", len(batch), refused)
        for name, pair in batch.items():
            if self._queue.get(name) is pair:
                del self._queue[name]
        self._wanted -= documents.keys()
        # Those whose topology it was given just now are not given again.
        self._want(set(unknown) - documents.keys())

    def _want(self, names: set[str]) -> None:
        if new := names - self._wanted:
            self._wanted |= new
            if any(("", name) in self._topologies.objects for name in new):
                self._again()

    def _documents(self) -> Iterator[tuple[str, NodeTopology]]:
        for name in sorted(self._wanted)[:MOST_TOPOLOGIES]:
            document = self._topologies.objects.get(("", name))
            if document is not None:
                # One that contradicts itself says nothing.
                with contextlib.suppress(ValueError):
                    yield name, topology_of(document)

    def _again(self) -> None:
        for document in self._bandwidths.objects.values():
            self._enqueue(document, None)

    def _changed(self, change: Change[Object]) -> None:
        if change.new is not None:
            self._enqueue(change.new, change.old)

    def _topology_came(self, change: Change[Object]) -> None:
        if change.new is not None and change.key[1] in self._wanted:
            self._again()

    def _enqueue(self, document: Object, before: Object | None) -> None:
        try:
            old = set(bandwidth_of(before).pairs) if before is not None else set()
            for pair in bandwidth_of(document).pairs:
                if pair not in old:
                    self._queue[key(pair)] = pair
        except BandwidthError as error:
            _LOG.info("not sent: %s", error)
        if self._queue:
            self._news.set()
