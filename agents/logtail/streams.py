"""A container's log from the API server, as ``kubectl logs --follow --timestamps`` gets it, without loss and repeats.

A stream that was cut is asked for again from a second before the last line seen: the server counts in whole seconds.
Lines that came already are known by their times, to the nanosecond; of a line that was cut in its middle, what was read
of it already. What is acknowledged is kept as a second and the number of its first line.
"""

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import NamedTuple

from kopt.agents.logtail.following import Position, Reading
from kopt.agents.logtail.records import LogLine, read_time
from kopt.cluster.client.api import ApiError, Kube, NotFound
from kopt.cluster.runtime.backoff import Backoff
from kopt.formats.joblog import LineSplitter

_LOG = logging.getLogger(__name__)
_LONGEST_TIME = 40
_MOST_TIMES = 20_000
_IDLE_S, _IDLE_BEHIND_S = 0.25, 5.0
"""Without a byte for so long a stream has brought what there was; longer where that was old, as more may be coming."""
_RECENT_S = 10.0
_AGAIN_S = 10.0


class Records:
    """Bytes of a stream → lines. ``number`` is that of the next one; ``since_s`` where to ask again from."""

    def __init__(self, number: int = 1, since_s: int | None = None) -> None:
        self.number, self.last_at_s = number, 0.0
        self._begins: dict[int, int] = {} if since_s is None else {since_s: number}
        self._times: Counter[bytes] = Counter()
        self._replayed: Counter[bytes] = Counter()
        self._coarse = self._newest = self._cut_at = b""
        self._cut_lines = 0
        self._begin()

    @property
    def since_s(self) -> int | None:
        return min(self._begins, default=None)

    @property
    def position(self) -> Position | None:
        since_s = self.since_s
        return None if since_s is None else {"since": since_s, "number": self._begins[since_s]}

    def feed(self, piece: bytes) -> list[LogLine]:
        result: list[LogLine] = []
        *ended, rest = piece.split(b"\n")
        for part in ended:
            self._part(part, result)
            self._end(result)
        if rest:
            self._part(rest, result)
        return result

    def connect(self) -> None:
        """What follows is a new stream, from ``since_s`` on."""
        if self._time and not self._drops:
            self._cut_at, self._cut_lines = self._time, max(self._read, self._skipped)
        self._replayed = self._times.copy()
        self._begin()

    def _begin(self) -> None:
        self._head: bytes | None = b""
        """What may be a time yet; None behind it."""
        self._time = b""
        self._at_s: float | None = None
        self._read, self._skipped, self._drops = 0, 0, False
        self._splitter = LineSplitter()

    def _part(self, part: bytes, result: list[LogLine]) -> None:
        if self._head is not None:
            head = self._head + part
            time, space, part = head.partition(b" ")
            if not space and len(head) <= _LONGEST_TIME:
                self._head = head
                return
            self._head = None
            at_s = read_time(time) if space else None
            if at_s is None:
                part = head
            else:
                self._open(time, at_s)
        self._append(part, result)

    def _open(self, time: bytes, at_s: float) -> None:
        self._time, self._at_s = time, at_s
        self._drops = self._replayed[time] > 0 or bool(self._coarse and self._replayed and time <= self._coarse)
        if self._replayed[time] > 0:
            self._replayed[time] -= 1
        elif time == self._cut_at:
            self._skipped, self._cut_at = self._cut_lines, b""
        if self._drops:
            return
        second = int(at_s)
        self.last_at_s = max(self.last_at_s, at_s)
        if second not in self._begins and second > max(self._begins, default=0):
            self._begins = {at: number for at, number in self._begins.items() if at >= second - 1}
            self._begins[second] = self.number
            self._times = Counter(
                {chunk: n for chunk, n in self._times.items() if (read_time(chunk) or 0) >= second - 1}
            )
            self._replayed.clear()

    def _append(self, part: bytes, result: list[LogLine]) -> None:
        for line in self._splitter.feed(part):
            self._read += 1
            if not self._drops and self._read > self._skipped:
                result.append(LogLine(line.text, self._at_s))
                self.number += 1

    def _end(self, result: list[LogLine]) -> None:
        if self._head is not None:
            self._append(self._head, result)
        self._append(b"\n", result)
        if self._time and not self._drops:
            self._count()
        self._begin()

    def _count(self) -> None:
        """Remember a record that is whole; of more than can be remembered, the newest time alone."""
        self._times[self._time] += 1
        self._newest = max(self._newest, self._time)
        if len(self._times) > _MOST_TIMES:
            self._times = Counter({self._newest: 1})
            self._coarse = self._newest


class Instance(NamedTuple):
    """A container of a pod; ``restarts`` tells its runs apart."""

    namespace: str
    pod: str
    container: str
    restarts: int = 0


class StreamSource:
    """The log of one container, from the API server."""

    def __init__(
        self,
        kube: Kube,
        instance: Instance,
        name: str,
        key: str,
        clock: Callable[[], float],
        position: Position | None = None,
    ) -> None:
        self.name, self.key = name, key
        self._kube, self._instance, self._followed, self._clock = kube, instance, instance.restarts, clock
        since_s, number = _read_position(position)
        self.fresh = since_s is None
        self._records = Records(number, since_s)
        self._finished = False
        self._changed = asyncio.Event()
        self._reported = ""

    def behind(self) -> float:
        return max(0.0, self._clock() - self._records.last_at_s)

    def continue_at(self, number: int) -> None:
        self._records.number = max(self._records.number, number)

    def finish(self) -> None:
        self._finished = True
        self._changed.set()

    def follow(self, instance: Instance) -> None:
        """What the pod says now about the container."""
        if instance != self._instance:
            self._instance = instance
            self._changed.set()

    async def readings(self, room: Callable[[], Awaitable[None]]) -> AsyncGenerator[Reading]:
        backoff = Backoff(0.2, _AGAIN_S)
        while True:
            self._changed.clear()
            finished = self._finished
            try:
                async with contextlib.aclosing(self._runs(room)) as runs:
                    async for reading in runs:
                        yield reading
                        backoff.reset()
                self._reported = ""
            except NotFound:
                finished = True
            except ApiError as error:
                # 400: there is no such log (yet); with everything else it may be there.
                finished = finished and error.status == 400
                self._report(error)
            if finished:
                return
            yield Reading(self._records.number, present=True)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(backoff.next_s()):
                    await self._changed.wait()

    async def _runs(self, room: Callable[[], Awaitable[None]]) -> AsyncGenerator[Reading]:
        """What is there of the run before, if there was one, and the present one to its end."""
        restarts = self._instance.restarts
        if restarts > self._followed:
            try:
                async with contextlib.aclosing(self._stream(room, previous=True)) as stream:
                    async for reading in stream:
                        yield reading
            except ApiError as error:
                if error.status != 400:
                    raise
            self._followed = restarts
        async with contextlib.aclosing(self._stream(room)) as stream:
            async for reading in stream:
                yield reading

    async def _stream(self, room: Callable[[], Awaitable[None]], *, previous: bool = False) -> AsyncGenerator[Reading]:
        self._records.connect()
        item = self._instance
        chunks = self._kube.follow_log(
            item.namespace, item.pod, item.container, since_s=self._records.since_s, previous=previous
        )
        async with contextlib.aclosing(chunks):
            while True:
                await room()
                coming = asyncio.ensure_future(anext(chunks, None))
                try:
                    idle_s = _IDLE_S if self.behind() < _RECENT_S else _IDLE_BEHIND_S
                    if not (await asyncio.wait({coming}, timeout=idle_s))[0]:
                        yield Reading(self._records.number, present=True)
                    piece = await coming
                finally:
                    coming.cancel()
                    await asyncio.wait({coming})
                if piece is None:
                    return
                first = self._records.number
                lines = self._records.feed(piece)
                yield Reading(first, lines, self._records.position)

    def _report(self, error: ApiError) -> None:
        if str(error) != self._reported:
            item = self._instance
            _LOG.info("the log of %s/%s, container %s: %s", item.namespace, item.pod, item.container, error)
            self._reported = str(error)


def _read_position(position: Position | None) -> tuple[int | None, int]:
    try:
        return (None, 1) if position is None else (int(position["since"]), max(1, int(position["number"])))
    except (KeyError, TypeError, ValueError):
        return None, 1
