"""What goes to the endpoint about one job: lines in their order, a request at a time, until it is acknowledged.

Memory is bounded, for each job and for all of them: ``put`` waits while there is no room.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import tenacity

from kopt.agents.logtail.following import Position
from kopt.agents.logtail.records import LogLine
from kopt.core.redaction import redact
from kopt.serving.client.transport import EndpointFailure, RequestRefused
from kopt.serving.contract.common import AnswerError

_LOG = logging.getLogger(__name__)
_LINE_BYTES = 160
"""What Python spends on a line beside its text."""
_NOT_READ, _ATTEMPTS = "NOT_READ", 5
_PARTS = 16
"""Refused lines are sent again in at most so many parts."""
_MOST_LISTINGS, _MOST_FILES = 16, 4000
"""Of checkpoint folders, in one request."""
_WAITS = (401, 403, 404, 408)
"""Refusals that are about the caller or the endpoint, not about these lines."""

Post = Callable[[Mapping[str, Any]], Awaitable[Mapping[str, Any]]]
Answer = Mapping[str, Any]


@dataclass(frozen=True)
class SenderSettings:
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
class Counters:
    """Counters of the whole process; ``skipped`` are lines that were passed over or refused."""

    sent: int = 0
    skipped: int = 0
    requests: int = 0
    failures: int = 0


class ByteBudget:
    """Bytes that all lines may use together. Waiting callers are admitted in order while there is room."""

    def __init__(self, most: int) -> None:
        self._most, self.used = most, 0
        self._pending: deque[asyncio.Future[None]] = deque()

    @property
    def full(self) -> bool:
        return self.used >= self._most

    def reserve(self, amount: int) -> None:
        self.used += amount

    def release(self, amount: int) -> None:
        self.used -= amount
        self._wake()

    async def admitted(self) -> None:
        """Waits until there is room."""
        queue = self._pending.append
        while self.full:
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            queue(turn)
            await turn
            # Where those before it have taken all the room, it is the next one again.
            queue = self._pending.appendleft
        # The next one comes after this one has taken what it needs, or has found that it needs nothing.
        self._wake()

    def _wake(self) -> None:
        while self._pending and not self.full:
            turn = self._pending.popleft()
            if not turn.done():
                turn.set_result(None)
                return


@dataclass
class _Batch:
    source: str
    first: int
    lines: list[LogLine]
    size: int
    key: str
    position: Position | None
    put_at_s: float


class Sender:
    """One job's. ``answered`` gets every answer, ``keep`` the positions of what was acknowledged."""

    def __init__(
        self,
        job: str,
        post: Post,
        budget: ByteBudget,
        settings: SenderSettings,
        counters: Counters,
        *,
        keep: Callable[[str, Position], None],
        answered: Callable[[Answer], None],
    ) -> None:
        self.job, self._post, self._budget, self._settings, self._counters = job, post, budget, settings, counters
        self._keep, self._answered = keep, answered
        self._batches: deque[_Batch] = deque()
        self._own = ByteBudget(settings.job_bytes)
        self._changed, self._settled = asyncio.Event(), asyncio.Event()
        self._requested, self._answers = False, 0
        self._extra: dict[str, Any] = {}
        self._listings: dict[str, dict[str, Any]] = {}
        self.expected: dict[str, int] = {}
        """The endpoint's ``next``: the number of the line that it waits for, by source."""
        self.gpus: float = 0.0
        self.hurry = False
        """Do not wait for more lines: the process ends."""
        self.down = False
        """The last request failed."""

    @property
    def full(self) -> bool:
        return self._own.full or self._budget.full

    async def wait_for_space(self) -> None:
        """Waits until there is room for more; nothing is read before that."""
        while self.full:
            await self._own.admitted()
            await self._budget.admitted()

    async def put(
        self, source: str, first: int, lines: list[LogLine], key: str = "", position: Position | None = None
    ) -> None:
        """Lines that the endpoint has already are left out; the position stays."""
        acknowledged = min(len(lines), max(0, self.expected.get(source, 0) - first))
        first, lines = first + acknowledged, lines[acknowledged:]
        most = self._settings.lines
        parts = [lines[at : at + most] for at in range(0, len(lines), most)] or [[]]
        for at, part in enumerate(parts):
            while at and self._own.full:
                await self._own.admitted()
            size = sum(len(line.text) + _LINE_BYTES for line in part)
            last = at == len(parts) - 1
            now_s = asyncio.get_running_loop().time()
            self._batches.append(_Batch(source, first, part, size, key, position if last else None, now_s))
            first += len(part)
            self._own.reserve(size)
            self._budget.reserve(size)
            self._changed.set()

    def attach(self, extra: Mapping[str, Any]) -> None:
        """Send these fields with the next request, soon. ``listings`` stand beside those of others until they are sent:
        only what the same looker saw before is replaced, and kept where nothing but its time is new."""
        for listing in extra.get("listings", ()):
            self._listings[listing["by"]] = self._listings.pop(listing["by"], {}) | listing
        self._extra.update({name: value for name, value in extra.items() if name != "listings"})
        self._requested = True
        self._changed.set()

    async def next_of(self, source: str) -> int:
        """The number of the line that the endpoint waits for, once it has all that was put in."""
        before, self._requested = self._answers, True
        self._changed.set()
        while self._batches or self._answers == before:
            self._settled.clear()
            await self._settled.wait()
        return self.expected.get(source, 1)

    async def drained(self) -> None:
        """Everything is acknowledged."""
        while self._batches:
            self._settled.clear()
            await self._settled.wait()

    async def run(self) -> None:
        """Send until cancelled."""
        try:
            while True:
                await self._wait()
                await self._send()
        finally:
            self._budget.release(self._own.used)

    async def _wait(self) -> None:
        """Until there is something to send, or to ask."""
        self._changed.clear()
        if not self._batches and not self._requested:
            try:
                async with asyncio.timeout(self._settings.ask_s):
                    await self._changed.wait()
            except TimeoutError:
                return
        if not self.hurry and sum(len(item.lines) for item in self._batches) < self._settings.lines:
            now_s = asyncio.get_running_loop().time()
            since_s = self._batches[0].put_at_s if self._batches else now_s
            await asyncio.sleep(since_s + self._settings.linger_s - now_s)

    async def _send(self) -> None:
        count, lines = self._bundle()
        if lines or self._requested or not count:
            self._requested = False
            head = self._batches[0] if lines else None
            await self._deliver(head.source if head else "", head.first if head else 0, lines)
        self._acknowledge(count)

    async def _deliver(self, source: str, first: int, lines: list[LogLine], parts: int = _PARTS) -> None:
        """Send until the endpoint has the lines; of lines that it refuses as they are, at least those it takes."""
        extra = self._next_extra()
        answer = await self._answer_to(_request(self.job, source, first, lines, self.gpus) | extra)
        if answer is not None:
            self._handle(answer)
            self._counters.sent += len(lines)
        elif len(lines) > 1 and parts > 1:
            half = len(lines) // 2
            await self._deliver(source, first, lines[:half], parts // 2)
            await self._deliver(source, first + half, lines[half:], parts // 2)
        elif extra and lines:
            # An endpoint of an earlier release refuses fields that it does not know, not the line.
            await self._deliver(source, first, lines, parts)
        else:
            self._counters.skipped += len(lines)

    def _next_extra(self) -> dict[str, Any]:
        """What was attached, as much as one request takes; the rest goes with the next one."""
        extra, self._extra = self._extra, {}
        listings: list[dict[str, Any]] = []
        files = 0
        for by in list(self._listings)[:_MOST_LISTINGS]:
            files += len(self._listings[by].get("files", ()))
            if listings and files > _MOST_FILES:
                break
            listings.append(self._listings.pop(by))
        if self._listings:
            self._requested = True
            self._changed.set()
        return extra | ({"listings": listings} if listings else {})

    def _bundle(self) -> tuple[int, list[LogLine]]:
        """How many parcels go into one request, and their lines: of one source, one after the other."""
        lines: list[LogLine] = []
        size, following = 0, 0
        for count, item in enumerate(self._batches):
            continues = (
                not lines or not item.lines or (item.source == self._batches[0].source and item.first == following)
            )
            too_much = lines and (
                len(lines) + len(item.lines) > self._settings.lines or size + item.size > self._settings.request_bytes
            )
            if not continues or too_much or (item.lines and not lines and count):
                return count, lines
            lines += item.lines
            size += item.size
            following = item.first + len(item.lines) if item.lines else following
        return len(self._batches), lines

    def _acknowledge(self, count: int) -> None:
        for _ in range(count):
            item = self._batches.popleft()
            self._own.release(item.size)
            self._budget.release(item.size)
            if item.position is not None:
                self._keep(item.key, item.position)
        self._settled.set()

    def _handle(self, answer: Answer) -> None:
        following = answer.get("next")
        if isinstance(following, Mapping):
            self.expected |= {str(name): number for name, number in following.items() if isinstance(number, int)}
        self._answers += 1
        self._answered(answer)

    async def _answer_to(self, request: Mapping[str, Any]) -> Answer | None:
        """Asks until there is an answer; None when the endpoint refuses the lines themselves."""
        attempts = tenacity.AsyncRetrying(
            retry=tenacity.retry_if_exception(_may_pass),
            wait=self._pause,
            reraise=True,
            stop=_in_vain,
            before_sleep=self._report_failure,
        )
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
        self._counters.requests += 1
        answer = await self._post(request)
        if answer.get("fallback") and not _covers(answer, request):
            raise EndpointFailure(_NOT_READ, str(answer.get("reason") or "a fallback answered"))
        return answer

    def _report_failure(self, state: tenacity.RetryCallState) -> None:
        self._counters.failures += 1
        if not self.down and state.outcome is not None:
            _LOG.warning("%s: nothing can be sent, reading waits: %s", self.job, state.outcome.exception())
        self.down = True

    def _pause(self, state: tenacity.RetryCallState) -> float:
        error = state.outcome.exception() if state.outcome is not None else None
        retry_after_s = error.retry_after_s if isinstance(error, EndpointFailure) else None
        if retry_after_s is not None:
            return retry_after_s
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
    acknowledged = following.get(request.get("source")) if isinstance(following, Mapping) else None
    return not request["lines"] or (
        isinstance(acknowledged, int) and acknowledged >= request["first"] + len(request["lines"])
    )


def _request(job: str, source: str, first: int, lines: list[LogLine], gpus: float) -> dict[str, Any]:
    request: dict[str, Any] = {"job": job, "lines": [_line(line) for line in lines]}
    if lines:
        request |= {"source": source, "first": first}
    return request | ({"gpus": gpus} if gpus else {})


def _line(line: LogLine) -> Any:
    # Without a time, the line's own counts; a bare text would have come just now.
    return {"text": redact(line.text), "at": line.at_s}
