"""What goes to the endpoint about one job, request by request, and what comes of each answer."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from kopt.agents.logtail import sender as module
from kopt.agents.logtail.following import Position
from kopt.agents.logtail.records import LogLine
from kopt.agents.logtail.sender import ByteBudget, Counters, Sender, SenderSettings
from kopt.serving.client.transport import EndpointFailure, RequestRefused
from kopt.serving.contract.checkpoint_schemas import CHECKPOINT_REQUEST, MAX_FILES, MAX_LISTINGS
from kopt.serving.contract.common import AnswerError

JOB, HEAD = "research/llama", 160
WITHIN_S = 5.0
"""Nothing here leaves the process, or waits."""
SETTINGS = SenderSettings(lines=4, linger_s=0.0, first_pause_s=2.0, longest_pause_s=8.0)
Reply = Mapping[str, Any] | Exception | Callable[[Mapping[str, Any]], Mapping[str, Any]]


def lines(first: int, last: int) -> list[LogLine]:
    return [LogLine(f"line {number}", float(number)) for number in range(first, last + 1)]


def mark(number: int) -> Position:
    return {"number": number}


class Box:
    """A sender, what it sent, and what it was answered; answers are given in order, then all lines are taken."""

    def __init__(self, *replies: Reply, settings: SenderSettings = SETTINGS, room: int = 1 << 20) -> None:
        self.replies = list(replies)
        self.requests: list[Mapping[str, Any]] = []
        self.marks: list[tuple[str, Position]] = []
        self.answers: list[Mapping[str, Any]] = []
        self.room, self.counters = ByteBudget(room), Counters()
        self.sender = Sender(
            JOB,
            self._post,
            self.room,
            settings,
            self.counters,
            keep=lambda key, kept: self.marks.append((key, kept)),
            answered=self.answers.append,
        )

    async def _post(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        self.requests.append(request)
        reply = self.replies.pop(0) if self.replies else {}
        if isinstance(reply, Exception):
            raise reply
        return reply(request) if callable(reply) else reply

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self.sender.run())
        try:
            async with asyncio.timeout(WITHIN_S):
                yield
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def sent(self) -> list[tuple[str, int, int]]:
        """Source, first number and count of each request, once everything is acknowledged."""
        async with self.running():
            await self.sender.drained()
        return [(each.get("source", ""), each.get("first", 0), len(each["lines"])) for each in self.requests]


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What is slept, which takes no time here."""
    slept: list[float] = []
    real = asyncio.sleep

    async def sleep(seconds: float) -> None:
        if seconds > 0:
            slept.append(seconds)
        await real(0)

    monkeypatch.setattr(module.asyncio, "sleep", sleep)
    return slept


async def soon(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(WITHIN_S):
        while not condition():
            await asyncio.sleep(0)


async def settled(work: Awaitable[Any]) -> "asyncio.Future[Any]":
    """Whatever can be done of it without waiting for others is done."""
    task = asyncio.ensure_future(work)
    for _ in range(10):
        await asyncio.sleep(0)
    return task


# ByteBudget.


async def test_room_is_full_from_its_limit_on_and_has_room_again_below_it() -> None:
    room = ByteBudget(100)
    room.reserve(99)
    assert not room.full
    room.reserve(1)
    assert (room.full, room.used) == (True, 100)
    room.release(1)
    assert (room.full, room.used) == (False, 99)


async def test_those_who_wait_for_room_are_let_in_in_turn_while_there_is_some() -> None:
    room, order = ByteBudget(100), list[str]()
    room.reserve(100)

    async def enter(name: str, amount: int) -> None:
        await room.admitted()
        order.append(name)
        room.reserve(amount)

    tasks = [await settled(enter(name, amount)) for name, amount in (("a", 10), ("b", 50), ("c", 10), ("d", 10))]
    assert order == []
    room.release(50)
    await settled(asyncio.sleep(0))
    assert order == ["a", "b"], "after these it is full again"
    room.release(30)
    await asyncio.gather(*tasks)
    assert order == ["a", "b", "c", "d"]


async def test_one_that_no_longer_waits_keeps_nobody_else_out() -> None:
    room = ByteBudget(10)
    room.reserve(10)
    gone, waits = await settled(room.admitted()), await settled(room.admitted())
    gone.cancel()
    room.release(5)
    async with asyncio.timeout(WITHIN_S):
        await waits


async def test_who_needs_no_room_lets_the_next_one_in() -> None:
    room = ByteBudget(10)
    room.reserve(10)
    waits = [await settled(room.admitted()) for _ in range(3)]
    room.release(1)
    async with asyncio.timeout(WITHIN_S):
        await asyncio.gather(*waits)


# What is put in.


async def test_a_request_has_the_job_the_lines_with_their_times_their_number_and_the_gpus() -> None:
    box = Box()
    await box.sender.put("a/b", 7, [LogLine("x"), LogLine("password=hunter22secret", 5.0)])
    await box.sent()
    assert box.requests == [
        {
            "job": JOB,
            "source": "a/b",
            "first": 7,
            "lines": [{"text": "x", "at": None}, {"text": "password=***", "at": 5.0}],
        }
    ]
    box = Box()
    box.sender.gpus = 8.0
    await box.sender.put("s", 1, lines(1, 1))
    await box.sent()
    assert box.requests[0]["gpus"] == 8.0


async def test_lines_that_the_endpoint_has_already_are_left_out_and_the_mark_stays() -> None:
    box = Box()
    box.sender.expected = {"s": 4}
    await box.sender.put("s", 1, lines(1, 5), "key", mark(5))
    await box.sender.put("s", 2, lines(2, 3), "key", mark(3))
    await box.sender.put("other", 2, lines(2, 3))
    assert await box.sent() == [("s", 4, 2), ("other", 2, 2)]
    assert box.marks == [("key", mark(5)), ("key", mark(3))]
    assert box.counters == Counters(sent=4, requests=2)


async def test_many_lines_are_several_requests_and_the_mark_is_kept_with_the_last() -> None:
    kept: list[int] = []

    def take(request: Mapping[str, Any]) -> Mapping[str, Any]:
        kept.append(len(box.marks))
        return {}

    box = Box(take, take, take)
    await box.sender.put("s", 1, lines(1, 10), "key", mark(10))
    assert await box.sent() == [("s", 1, 4), ("s", 5, 4), ("s", 9, 2)]
    assert kept == [0, 0, 0]
    assert box.marks == [("key", mark(10))]


async def test_room_is_taken_for_text_and_what_python_adds_and_given_back_once_acknowledged() -> None:
    box = Box()
    await box.sender.put("s", 1, [LogLine("abc"), LogLine("defgh")])
    assert box.room.used == box.sender._own.used == 3 + 5 + 2 * HEAD
    await box.sender.put("s", 3, [LogLine("i")])
    assert box.room.used == 9 + 3 * HEAD
    await box.sent()
    assert (box.room.used, box.sender._own.used) == (0, 0)


async def test_what_was_never_sent_is_given_back_when_the_job_ends() -> None:
    box = Box()
    box.room.reserve(50)
    await box.sender.put("s", 1, lines(1, 9))
    box.sender._batches.clear()
    async with box.running():
        await asyncio.sleep(0)
    assert box.room.used == 50


async def test_parts_wait_for_the_jobs_own_room_and_the_first_does_not() -> None:
    box = Box(settings=replace(SETTINGS, job_bytes=4 * HEAD))
    task = await settled(box.sender.put("s", 1, lines(1, 12)))
    assert [batch.first for batch in box.sender._batches] == [1]
    assert box.sender.full
    async with box.running():
        await task
        await box.sender.drained()
    assert [each["first"] for each in box.requests] == [1, 5, 9]


async def test_nothing_is_read_while_the_job_or_all_jobs_together_have_no_room() -> None:
    for job_bytes, all_bytes in ((HEAD, 1 << 20), (1 << 20, HEAD)):
        box = Box(settings=replace(SETTINGS, job_bytes=job_bytes), room=all_bytes)
        await box.sender.wait_for_space()
        await box.sender.put("s", 1, lines(1, 1))
        waits = await settled(box.sender.wait_for_space())
        assert (box.sender.full, waits.done()) == (True, False)
        async with box.running():
            await waits
        assert not box.sender.full


# What goes into one request.


async def test_lines_that_follow_each_other_go_together_up_to_the_limit_of_lines() -> None:
    box = Box()
    for first, last in ((1, 1), (2, 3), (4, 4), (5, 5)):
        await box.sender.put("s", first, lines(first, last))
    assert await box.sent() == [("s", 1, 4), ("s", 5, 1)]


async def test_a_gap_or_another_source_begins_a_request() -> None:
    box = Box()
    for source, first in (("s", 1), ("s", 3), ("t", 4), ("t", 5), ("s", 4)):
        await box.sender.put(source, first, lines(first, first))
    assert await box.sent() == [("s", 1, 1), ("s", 3, 1), ("t", 4, 2), ("s", 4, 1)]


async def test_a_request_keeps_its_limit_of_bytes_but_for_its_first_lines() -> None:
    each = HEAD + 6
    box = Box(settings=replace(SETTINGS, request_bytes=2 * each))
    for number in range(1, 6):
        await box.sender.put("s", number, lines(number, number))
    assert await box.sent() == [("s", 1, 2), ("s", 3, 2), ("s", 5, 1)]
    box = Box(settings=replace(SETTINGS, request_bytes=10))
    await box.sender.put("s", 1, lines(1, 3))
    await box.sender.put("s", 4, lines(4, 4))
    assert await box.sent() == [("s", 1, 3), ("s", 4, 1)]


async def test_marks_without_lines_go_along_and_cost_no_request() -> None:
    box = Box()
    await box.sender.put("s", 1, lines(1, 1), "a", mark(1))
    await box.sender.put("t", 9, [], "b", mark(2))
    await box.sender.put("s", 2, lines(2, 2), "c", mark(3))
    assert await box.sent() == [("s", 1, 2)]
    assert box.marks == [("a", mark(1)), ("b", mark(2)), ("c", mark(3))]
    box = Box()
    await box.sender.put("s", 1, [], "a", mark(1))
    await box.sender.put("s", 1, lines(1, 1), "b", mark(2))
    assert await box.sent() == [("s", 1, 1)]
    assert box.marks == [("a", mark(1)), ("b", mark(2))]


# When it is sent.


async def test_a_request_waits_for_more_lines_unless_there_are_enough_or_the_process_ends(
    pauses: list[float],
) -> None:
    settings = replace(SETTINGS, linger_s=50.0)

    async def lingered(count: int, hurry: bool) -> list[float]:
        box = Box(settings=settings)
        box.sender.hurry = hurry
        await box.sender.put("s", 1, lines(1, count))
        pauses.clear()
        await box.sent()
        return [round(pause) for pause in pauses]

    assert await lingered(3, False) == [50]
    assert await lingered(4, False) == []
    assert await lingered(3, True) == []


async def test_the_wait_counts_from_the_first_line_that_waits(pauses: list[float]) -> None:
    box = Box(settings=replace(SETTINGS, linger_s=50.0))
    await box.sender.put("s", 1, lines(1, 1))
    await box.sender.put("s", 2, lines(2, 2))
    box.sender._batches[0].put_at_s -= 30.0
    await box.sent()
    assert [round(pause) for pause in pauses] == [20]


async def test_a_job_that_prints_nothing_is_asked_about_again_and_again() -> None:
    box = Box(settings=replace(SETTINGS, ask_s=0.01))
    async with box.running():
        await soon(lambda: len(box.requests) >= 3)
    assert box.requests[0] == {"job": JOB, "lines": []}
    assert len(box.answers) >= 2
    quiet = Box(settings=replace(SETTINGS, ask_s=60.0))
    async with quiet.running():
        await asyncio.sleep(0.02)
    assert quiet.requests == []


async def test_fields_that_are_attached_go_with_the_next_request_alone() -> None:
    box = Box()
    async with box.running():
        box.sender.attach({"x": 1})
        box.sender.attach({"y": 2})
        await soon(lambda: len(box.answers) == 1)
        await box.sender.put("s", 1, lines(1, 1))
        await box.sender.drained()
    assert box.requests[0] == {"job": JOB, "lines": [], "x": 1, "y": 2}
    assert "x" not in box.requests[1]
    assert len(box.requests) == 2


# What is answered.


async def test_the_number_that_the_endpoint_waits_for_is_known_once_all_lines_are_there() -> None:
    box = Box({"next": {"s": 2}}, {"next": {"s": 9, "t": 3, "odd": "x"}}, {"next": "odd"}, {"next": {"u": 5}})
    async with box.running():
        await box.sender.put("s", 1, lines(1, 1))
        await box.sender.put("t", 1, lines(1, 1))
        assert await box.sender.next_of("s") == 9
        assert box.sender.expected == {"s": 9, "t": 3}
        assert await box.sender.next_of("t") == 3
        assert await box.sender.next_of("unknown") == 1
        assert box.sender.expected == {"s": 9, "t": 3, "u": 5}, "an answer need not name all of them"
    assert len(box.answers) == len(box.requests)
    assert box.answers[0] == {"next": {"s": 2}}


async def test_lines_that_are_refused_are_halved_until_those_are_found_that_it_refuses() -> None:
    def refuse(request: Mapping[str, Any]) -> Mapping[str, Any]:
        if any(line["text"] == "line 3" for line in request["lines"]):
            raise RequestRefused(422, "no")
        return {}

    box = Box(*[refuse] * 20, settings=replace(SETTINGS, lines=8))
    await box.sender.put("s", 1, lines(1, 8), "key", mark(8))
    expected = [("s", 1, 8), ("s", 1, 4), ("s", 1, 2), ("s", 3, 2), ("s", 3, 1), ("s", 4, 1), ("s", 5, 4)]
    assert await box.sent() == expected
    assert (box.counters.sent, box.counters.skipped, box.counters.failures) == (7, 1, 0)
    assert box.marks == [("key", mark(8))]


async def test_refused_lines_are_sent_again_in_at_most_sixteen_parts() -> None:
    box = Box(*[RequestRefused(422, "no")] * 40, settings=replace(SETTINGS, lines=100))
    await box.sender.put("s", 1, lines(1, 64))
    sent = await box.sent()
    assert [count for *_, count in sent].count(4) == 16
    assert len(sent) == 31
    assert (box.counters.sent, box.counters.skipped) == (0, 64)


def seen(by: str, at: float, *paths: str) -> dict[str, Any]:
    files = [{"path": path, "bytes": 1, "modified_at": at} for path in paths]
    return {"listings": [{"by": by, "at": at, **({"files": files} if paths else {})}]}


async def test_what_several_lookers_list_is_sent_together_each_with_its_last_listing() -> None:
    box = Box()
    for listing in (seen("a", 1.0, "x"), seen("b", 2.0, "y"), seen("a", 3.0, "z"), seen("a", 4.0), seen("c", 5.0)):
        box.sender.attach(listing | {"annotations": {"n": "1"}})
    async with box.running():
        await box.sender.next_of("s")
    (request,) = box.requests
    CHECKPOINT_REQUEST.validate_python(request)
    assert request["annotations"] == {"n": "1"}
    assert {
        each["by"]: (each["at"], [file["path"] for file in each.get("files", ())]) for each in request["listings"]
    } == {"a": (4.0, ["z"]), "b": (2.0, ["y"]), "c": (5.0, [])}


async def test_a_request_has_as_many_listings_as_the_endpoint_takes_and_the_rest_goes_with_the_next() -> None:
    box = Box()
    for number in range(MAX_LISTINGS + 3):
        box.sender.attach(seen(f"pod-{number}", float(number), "x"))
    for number in (100, 101):
        box.sender.attach(seen(f"pod-{number}", float(number), *map(str, range(MAX_FILES))))
    async with box.running():
        while sum(len(each["listings"]) for each in box.requests) < MAX_LISTINGS + 5:
            await asyncio.sleep(0)
    for request in box.requests:
        CHECKPOINT_REQUEST.validate_python(request)
    assert [len(each["listings"]) for each in box.requests] == [MAX_LISTINGS, 3, 1, 1]


async def test_attached_fields_are_not_sent_again_with_the_parts_of_refused_lines() -> None:
    box = Box(RequestRefused(422, "no"))
    box.sender.attach({"x": 1})
    await box.sender.put("s", 1, lines(1, 2))
    await box.sent()
    assert [each.get("x") for each in box.requests] == [1, None, None]


async def test_a_line_is_not_lost_with_a_field_that_the_endpoint_refuses() -> None:
    box = Box(RequestRefused(422, "listings: extra fields not permitted"))
    box.sender.attach(seen("a", 1.0, "x"))
    await box.sender.put("s", 1, lines(1, 1))
    assert await box.sent() == [("s", 1, 1)] * 2
    assert ["listings" in each for each in box.requests] == [True, False]
    assert (box.counters.sent, box.counters.skipped) == (1, 0)


@pytest.mark.parametrize(
    "error",
    [
        *[RequestRefused(status, "no") for status in (401, 403, 404, 408)],
        EndpointFailure("DOWN", "no answer"),
        AnswerError("odd"),
    ],
)
async def test_what_may_pass_is_tried_again_until_it_has(pauses: list[float], error: Exception) -> None:
    box = Box(*[error] * 8)
    await box.sender.put("s", 1, lines(1, 2))
    assert await box.sent() == [("s", 1, 2)] * 9
    assert (box.counters.requests, box.counters.failures, box.counters.sent, box.counters.skipped) == (9, 8, 2, 0)


async def test_pauses_between_attempts_grow_and_are_never_short(pauses: list[float]) -> None:
    box = Box(*[EndpointFailure("DOWN", "no answer")] * 60)
    await box.sender.put("s", 1, lines(1, 2))
    await box.sent()
    assert len(pauses) == 60
    assert all(1.0 <= pause <= 1.0 + most for pause, most in zip(pauses, [2.0, 4.0, *[8.0] * 58], strict=True))
    assert max(pauses[2:]) > 5.0


async def test_what_the_endpoint_asks_to_wait_is_waited_exactly(pauses: list[float]) -> None:
    box = Box(EndpointFailure("BUSY", "later", retry_after_s=17.0), EndpointFailure("BUSY", "later", retry_after_s=0.0))
    await box.sender.put("s", 1, lines(1, 2))
    await box.sent()
    assert pauses == [17.0]


async def test_any_other_error_ends_the_process_that_sends() -> None:
    box = Box(KeyError("bug"))
    await box.sender.put("s", 1, lines(1, 2))
    with pytest.raises(KeyError):
        await box.sender.run()


async def test_an_endpoint_that_is_down_is_said_once_and_so_is_that_it_is_back(
    pauses: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    down: list[bool] = []

    def look(request: Mapping[str, Any]) -> Mapping[str, Any]:
        down.append(box.sender.down)
        raise EndpointFailure("DOWN", "no answer")

    box = Box(look, look, look)
    await box.sender.put("s", 1, lines(1, 2))
    await box.sent()
    assert down == [False, True, True]
    assert not box.sender.down
    messages = [record.getMessage() for record in caplog.records if record.name == module.__name__]
    assert messages == [
        f"{JOB}: nothing can be sent, reading waits: no answer",
        f"{JOB}: the endpoint answers again",
    ]


@pytest.mark.parametrize(
    ("answer", "tries"),
    [
        ({"fallback": True}, 2),
        ({"fallback": True, "next": {"s": 2}}, 2),
        ({"fallback": True, "next": {"s": "3"}}, 2),
        ({"fallback": True, "next": {"t": 3}}, 2),
        ({"fallback": True, "next": {"s": 3}}, 1),
        ({"fallback": False}, 1),
    ],
)
async def test_lines_that_only_a_fallback_answered_come_again_unless_it_has_them(
    pauses: list[float], answer: Mapping[str, Any], tries: int
) -> None:
    box = Box(answer)
    await box.sender.put("s", 1, lines(1, 2))
    assert await box.sent() == [("s", 1, 2)] * tries
    assert box.counters.sent == 2


async def test_a_fallback_that_answers_without_lines_is_an_answer() -> None:
    box = Box({"fallback": True})
    async with box.running():
        assert await box.sender.next_of("s") == 1
    assert len(box.requests) == 1


async def test_lines_that_an_endpoint_has_not_read_five_times_are_what_it_cannot_read(
    pauses: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    box = Box(*[{"fallback": True, "reason": "no model"}] * 5, settings=replace(SETTINGS, lines=1))
    await box.sender.put("s", 1, lines(1, 1), "key", mark(1))
    await box.sender.put("s", 2, lines(2, 2))
    assert await box.sent() == [*[("s", 1, 1)] * 5, ("s", 2, 1)]
    assert (box.counters.sent, box.counters.skipped) == (1, 1)
    assert box.marks == [("key", mark(1))]
    assert "cannot read 1 lines: no model" in caplog.text
