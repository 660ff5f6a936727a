"""What goes to the endpoint about one job: lines in their order, a request at a time, until it is acknowledged.

Memory is bounded, for each job and for all of them: whoever puts lines in waits while there is no room.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import tenacity

from kopt.agents.logtail.following import Mark
from kopt.agents.logtail.records import Said
from kopt.serving.answers import AnswerError
from kopt.serving.client import EndpointFailure, RequestRefused

_LOG = logging.getLogger(__name__)
_LINE_BYTES = 160
"""What Python spends on a line beside its text."""
_NOT_READ, _ATTEMPTS = "NOT_READ", 5
_PARTS = 16
"""Refused lines are sent again in at most so many parts."""
_WAITS = (401, 403, 404, 408)
"""Refusals that are about the caller or the endpoint, not about these lines."""

Post = Callable[[Mapping[str, Any]], Awaitable[Mapping[str, Any]]]
Answer = Mapping[str, Any]


@dataclass(frozen=True)
class OutboxSettings:
    """Bytes count with what Python adds to text."""

    job_bytes: int = 1 << 19
    all_bytes: int = 16 << 20
    lines: int = 1000
    """Of one request."""
    request_bytes: int = 512 << 10
    linger_s: float = 0.3
    """A request waits for more lines for so long."""
    ask_s: float = 60.0
    """A job that prints nothing is asked about this often: time passes for it too."""
    first_pause_s: float = 0.5
    longest_pause_s: float = 30.0
    """Between attempts, where the endpoint does not say itself."""


@dataclass
class Tally:
    """Counters of the whole process; ``skipped`` are lines that were passed over or refused."""

    sent: int = 0
    skipped: int = 0
    requests: int = 0
    failures: int = 0


class Room:
    """Bytes that lines take up together. Whoever waits is let in in turn, one after the other while there is room."""

    def __init__(self, most: int) -> None:
        self._most, self.used = most, 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    @property
    def full(self) -> bool:
        return self.used >= self._most

    def take(self, amount: int) -> None:
        self.used += amount

    def give(self, amount: int) -> None:
        self.used -= amount
        self._wake()

    async def admitted(self) -> None:
        """Waits until there is room."""
        while self.full:
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(turn)
            await turn
        # The next one comes after this one has taken what it needs, or has found that it needs nothing.
        self._wake()

    def _wake(self) -> None:
        while self._waiting and not self.full:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return


@dataclass
class _Parcel:
    source: str
    first: int
    lines: list[Said]
    size: int
    key: str
    mark: Mark | None
    put_at_s: float


class Outbox:
    """One job's. ``answered`` gets every answer, ``keep`` the marks of what was acknowledged."""

    def __init__(
        self, job: str, post: Post, room: Room, settings: OutboxSettings, tally: Tally, *,
        keep: Callable[[str, Mark], None], answered: Callable[[Answer], None],
    ) -> None:  # fmt: skip
        self.job, self._post, self._room, self._settings, self._tally = job, post, room, settings, tally
        self._keep, self._answered = keep, answered
        self._parcels: deque[_Parcel] = deque()
        self._own = Room(settings.job_bytes)
        self._news, self._settled = asyncio.Event(), asyncio.Event()
        self._asked, self._answers = False, 0
        self._extra: dict[str, Any] = {}
        self.expected: dict[str, int] = {}
        """The endpoint's ``next``: the number of the line that it waits for, by source."""
        self.gpus: float = 0.0
        self.hurry = False
        """Do not wait for more lines: the process ends."""
        self.down = False
        """The last request failed."""

    @property
    def full(self) -> bool:
        return self._own.full or self._room.full

    async def room(self) -> None:
        """Waits until there is room for more; nothing is read before that."""
        while self.full:
            await self._own.admitted()
            await self._room.admitted()

    async def put(self, source: str, first: int, lines: list[Said], key: str = "", mark: Mark | None = None) -> None:
        """Lines that the endpoint has already are left out; the mark stays."""
        known = min(len(lines), max(0, self.expected.get(source, 0) - first))
        first, lines = first + known, lines[known:]
        most = self._settings.lines
        parts = [lines[at : at + most] for at in range(0, len(lines), most)] or [[]]
        for at, part in enumerate(parts):
            while at and self._own.full:
                await self._own.admitted()
            size = sum(len(line.text) + _LINE_BYTES for line in part)
            last = at == len(parts) - 1
            now_s = asyncio.get_running_loop().time()
            self._parcels.append(_Parcel(source, first, part, size, key, mark if last else None, now_s))
            first += len(part)
            self._own.take(size)
            self._room.take(size)
            self._news.set()

    def attach(self, extra: Mapping[str, Any]) -> None:
        """Send these fields with the next request, soon."""
        self._extra.update(extra)
        self._asked = True
        self._news.set()

    async def next_of(self, source: str) -> int:
        """The number of the line that the endpoint waits for, once it has all that was put in."""
        before, self._asked = self._answers, True
        self._news.set()
        while self._parcels or self._answers == before:
            self._settled.clear()
            await self._settled.wait()
        return self.expected.get(source, 1)

    async def drained(self) -> None:
        """Everything is acknowledged."""
        while self._parcels:
            self._settled.clear()
            await self._settled.wait()

    async def run(self) -> None:
        """Send until cancelled."""
        try:
            while True:
                await self._wait()
                await self._send()
        finally:
            self._room.give(self._own.used)

    async def _wait(self) -> None:
        """Until there is something to send, or to ask."""
        self._news.clear()
        if not self._parcels and not self._asked:
            try:
                async with asyncio.timeout(self._settings.ask_s):
                    await self._news.wait()
            except TimeoutError:
                return
        if not self.hurry and sum(len(one.lines) for one in self._parcels) < self._settings.lines:
            now_s = asyncio.get_running_loop().time()
            since_s = self._parcels[0].put_at_s if self._parcels else now_s
            await asyncio.sleep(since_s + self._settings.linger_s - now_s)

    async def _send(self) -> None:
        count, lines = self._bundle()
        if lines or self._asked or not count:
            self._asked = False
            head = self._parcels[0] if lines else None
            await self._deliver(head.source if head else "", head.first if head else 0, lines)
        self._acknowledge(count)

    async def _deliver(self, source: str, first: int, lines: list[Said], parts: int = _PARTS) -> None:
        """Send until the endpoint has the lines; of lines that it refuses as they are, at least those it takes."""
        extra, self._extra = self._extra, {}
        answer = await self._answer_to(_request(self.job, source, first, lines, self.gpus) | extra)
        if answer is not None:
            self._heard(answer)
            self._tally.sent += len(lines)
        elif len(lines) > 1 and parts > 1:
            half = len(lines) // 2
            await self._deliver(source, first, lines[:half], parts // 2)
            await self._deliver(source, first + half, lines[half:], parts // 2)
        else:
            self._tally.skipped += len(lines)

    def _bundle(self) -> tuple[int, list[Said]]:
        """How many parcels go into one request, and their lines: of one source, one after the other."""
        lines: list[Said] = []
        size, following = 0, 0
        for count, one in enumerate(self._parcels):
            goes_on = not lines or not one.lines or (one.source == self._parcels[0].source and one.first == following)
            too_much = lines and (
                len(lines) + len(one.lines) > self._settings.lines or size + one.size > self._settings.request_bytes
            )
            if not goes_on or too_much or (one.lines and not lines and count):
                return count, lines
            lines = lines + one.lines if one.lines else lines
            size += one.size
            following = one.first + len(one.lines) if one.lines else following
        return len(self._parcels), lines

    def _acknowledge(self, count: int) -> None:
        for _ in range(count):
            one = self._parcels.popleft()
            self._own.give(one.size)
            self._room.give(one.size)
            if one.mark is not None:
                self._keep(one.key, one.mark)
        self._settled.set()

    def _heard(self, answer: Answer) -> None:
        following = answer.get("next")
        if isinstance(following, Mapping):
            self.expected |= {str(name): number for name, number in following.items() if isinstance(number, int)}
        self._answers += 1
        self._answered(answer)

    async def _answer_to(self, request: Mapping[str, Any]) -> Answer | None:
        """Asks until there is an answer; None when the endpoint refuses the lines themselves."""
        attempts = tenacity.AsyncRetrying(
            retry=tenacity.retry_if_exception(_may_pass), wait=self._pause, reraise=True, stop=_in_vain,
            before_sleep=self._tell_failure,
        )  # fmt: skip
        try:
            answer: Answer = await attempts(self._once, request)
        except RequestRefused as error:
            _LOG.error("%s: the endpoint refuses %d lines: %s", self.job, len(request["lines"]), error)
            return None
        except EndpointFailure as error:
            _LOG.error("%s: the endpoint cannot read %d lines: %s", self.job, len(request["lines"]), error)
            return None
        if self.down:
            _LOG.info("%s: the endpoint answers again", self.job)
        self.down = False
        return answer

    async def _once(self, request: Mapping[str, Any]) -> Answer:
        self._tally.requests += 1
        answer = await self._post(request)
        if answer.get("fallback") and not _covers(answer, request):
            raise EndpointFailure(_NOT_READ, str(answer.get("reason") or "a fallback answered"))
        return answer

    def _tell_failure(self, state: tenacity.RetryCallState) -> None:
        self._tally.failures += 1
        if not self.down and state.outcome is not None:
            _LOG.warning("%s: nothing can be sent, reading waits: %s", self.job, state.outcome.exception())
        self.down = True

    def _pause(self, state: tenacity.RetryCallState) -> float:
        error = state.outcome.exception() if state.outcome is not None else None
        asked_s = error.retry_after_s if isinstance(error, EndpointFailure) else None
        if asked_s is not None:
            return asked_s
        first_s, longest_s = self._settings.first_pause_s, self._settings.longest_pause_s
        return first_s / 2 + float(tenacity.wait_random_exponential(first_s, longest_s)(state))


def _may_pass(error: BaseException) -> bool:
    if isinstance(error, RequestRefused):
        return error.status in _WAITS
    return isinstance(error, EndpointFailure | AnswerError)


def _in_vain(state: tenacity.RetryCallState) -> bool:
    """What an endpoint that answers has not read after several attempts is what it cannot read."""
    error = state.outcome.exception() if state.outcome is not None else None
    not_read = isinstance(error, EndpointFailure) and error.reason.code == _NOT_READ
    return not_read and state.attempt_number >= _ATTEMPTS


def _covers(answer: Answer, request: Mapping[str, Any]) -> bool:
    """Whether the endpoint has the lines, by its own word."""
    following = answer.get("next")
    known = following.get(request.get("source")) if isinstance(following, Mapping) else None
    return not request["lines"] or (isinstance(known, int) and known >= request["first"] + len(request["lines"]))


def _request(job: str, source: str, first: int, lines: list[Said], gpus: float) -> dict[str, Any]:
    request: dict[str, Any] = {"job": job, "lines": [_line(one) for one in lines]}
    if lines:
        request |= {"source": source, "first": first}
    return request | ({"gpus": gpus} if gpus else {})


def _line(said: Said) -> Any:
    # Without a time, the line's own counts; a bare text would have come just now.
    return {"text": said.text, "at": said.at_s}
