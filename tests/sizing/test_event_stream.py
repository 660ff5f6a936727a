"""The decoder of a probe's events: what is well formed is read, everything else is refused with its place."""

import io
import struct
from typing import Any

import numpy as np
import pytest
from example_budget import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from sizing.traces import HELLO, frame, message, read, rows

from kopt.tracing.events import Event, EventLimits, Pass, Role, TraceError, read_events
from kopt.tracing.timeline import replay

WHOLE = (
    message(name=[1, "forward"]),
    message(name=[2, "layer.0"]),
    rows((Event.PHASE, 1), (Event.ALLOC, 7, 4096, 0, 2), (Event.ROLE, 7, 1)),
    message(stand_in={"what": "dataset", "why": "no network"}, assumption="batch of 8"),
    message(parameters={"count": 10, "trainable": 10, "bytes": 40}),
    rows((Event.FREE, 7)),
    message(end={"reason": "steady", "steps": 3, "error": None}),
)

FOLD = {
    "id": 1,
    "input": [8, 64, 56, 56],
    "weight": [128, 32, 3, 3],
    "stride": [2, 2],
    "padding": [1, 1],
    "dilation": [1],
    "groups": 2,
    "transposed": False,
    "dtype": "float32",
    "channels_last": True,
}


class Dribble(io.RawIOBase):
    """A pipe that gives a few bytes at a time."""

    def __init__(self, content: bytes) -> None:
        self.content = io.BytesIO(content)

    def read(self, size: int = -1) -> bytes:
        return self.content.read(min(size, 3))


def test_a_whole_stream_is_read() -> None:
    trace = read(*WHOLE)
    assert len(trace) == 4
    assert trace.names[2] == "layer.0"
    assert trace.hello.torch == "2.15.0"
    assert trace.end is not None
    assert (trace.end.reason, trace.end.steps) == ("steady", 3)
    assert trace.parameters is not None
    assert trace.parameters.bytes == 40
    assert trace.stand_ins[0].what == "dataset"
    assert trace.assumptions == ("batch of 8",)
    assert not trace.rows.flags.writeable


def test_convolutions_are_read_with_their_sizes() -> None:
    trace = read(message(convolution=FOLD), rows((Event.CONVOLUTION, 1, Pass.INPUT_GRADIENT | Pass.WEIGHT_GRADIENT)))
    told = trace.convolutions[1]
    assert (told.source, told.weight, told.dilation) == ((8, 64, 56, 56), (128, 32, 3, 3), (1,))
    assert (told.groups, told.transposed, told.dtype, told.channels_last) == (2, False, "float32", True)
    assert trace.rows[0].tolist() == [Event.CONVOLUTION, 1, 6, 0, 0, 0]


def test_a_stream_of_before_convolutions_were_told_is_still_read() -> None:
    assert read(*WHOLE).convolutions == {}


def test_a_pipe_may_give_it_in_pieces() -> None:
    content = message(hello=HELLO) + b"".join(WHOLE)
    assert np.array_equal(read_events(Dribble(content)).rows, read(*WHOLE).rows)  # type: ignore[arg-type]


@given(st.integers(0, 10**6))
def test_a_stream_that_stops_is_a_trace_without_an_end(cut: int) -> None:
    hello = message(hello=HELLO)
    content = hello + b"".join(WHOLE)
    cut = len(hello) + cut % (len(content) - len(hello))
    assert read_events(io.BytesIO(content[:cut])).end is None


def test_rows_belong_to_the_rank_named_last() -> None:
    trace = read(rows((Event.ALLOC, 1, 512), (Event.RANK, 3), (Event.ALLOC, 2, 1024), (Event.RANK, 0), (Event.FREE, 1)))
    assert trace.ranks == (0, 3)
    assert trace.of_rank(0)[:, 1].tolist() == [1, 1]
    assert trace.of_rank(3)[:, 2].tolist() == [1024]


def test_a_storage_keeps_its_rank_and_a_phase_is_everybodys() -> None:
    trace = read(
        message(name=[1, "forward"]),
        rows(
            (Event.ALLOC, 1, 512),
            (Event.RANK, 1),
            (Event.ALLOC, 2, 1024),
            (Event.ROLE, 1, Role.WEIGHTS),
            (Event.PHASE, 1, 0),
            (Event.ROLE, 2, Role.GRADIENTS),
            (Event.RANK, 0),
            (Event.ROLE, 2, Role.OPTIMIZER),
        ),
    )
    assert trace.of_rank(0)[:, :2].tolist() == [[Event.ALLOC, 1], [Event.ROLE, 1], [Event.PHASE, 1]]
    assert trace.of_rank(1)[:, 1].tolist() == [2, 1, 2, 2]
    first, second = replay(trace, rank=0), replay(trace, rank=1)
    assert (first.breakdown.weights, second.breakdown.weights) == (512, 0)
    assert second.breakdown.optimizer == 1024


@pytest.mark.parametrize(
    ("frames", "said"),
    [
        ([frame(7, b"")], "kind 7"),
        ([struct.pack("<BI", 1, 2**31)], "at most"),
        ([frame(1, b"\0" * 47)], "whole number of rows"),
        ([frame(0, b"{")], "not a JSON message"),
        ([frame(0, b"[" * 100_000)], "not a JSON message"),
        ([frame(0, b"\xff\xfe")], "not a JSON message"),
        ([frame(0, b"[1]")], "JSON object"),
        ([message(hello=HELLO)], "once"),
        ([rows((0, 1))], "does not exist"),
        ([rows((11, 1))], "does not exist"),
        ([rows((Event.CONVOLUTION, 3, 1))], "convolution 3 is used before it is told"),
        ([message(convolution=FOLD), rows((Event.CONVOLUTION, 1, 0))], "without a pass"),
        ([message(convolution=FOLD), rows((Event.CONVOLUTION, 1, Pass.SEARCHED))], "without a pass"),
        ([message(convolution=FOLD), rows((Event.CONVOLUTION, 1, 17))], "without a pass"),
        ([message(convolution=FOLD), message(convolution=FOLD)], "told twice"),
        ([message(convolution={**FOLD, "input": [8, 64]})], "spatial dimensions"),
        ([message(convolution={**FOLD, "stride": [1, 1, 1]})], "spatial dimensions"),
        ([message(convolution={**FOLD, "stride": [0, 1]})], "strides of one or more"),
        ([message(convolution={**FOLD, "groups": 0})], "strides of one or more"),
        ([message(convolution={**FOLD, "transposed": 1})], "true or false"),
        ([message(convolution={**FOLD, "weight": [1 << 41, 64, 3, 3]})], "beyond any tensor"),
        ([message(convolution={**FOLD, "weight": 64})], "sizes"),
        ([message(convolution=7)], "must be an object"),
        ([rows((Event.FREE, 5))], "not allocated before"),
        ([rows((Event.FREE, 5), (Event.ALLOC, 5, 1))], "not allocated before"),
        ([rows((Event.ALLOC, 5, 1), (Event.FREE, 5), (Event.FREE, 5))], "freed twice"),
        ([rows((Event.ALLOC, 5, 1)), rows((Event.ALLOC, 5, 1))], "allocated twice"),
        ([rows((Event.ALLOC, 5, -1))], "negative"),
        ([rows((Event.ALLOC, 5, 1 << 60))], "beyond any machine"),
        ([rows((Event.ALLOC, -5, 1))], "negative"),
        ([rows((Event.ALLOC, 5, 1, 0, 99))], "name 99"),
        ([rows((Event.PHASE, 99))], "name 99"),
        ([rows((Event.ALLOC, 5, 1), (Event.ROLE, 5, 70))], "role"),
        ([rows((Event.ALLOC, 5, 1), (Event.FREE, 5), (Event.RECORD_STREAM, 5, 0, 1))], "used on a stream"),
        ([rows((Event.RANK, 1 << 40))], "rank"),
        ([message(name=[0, "x"])], "given twice"),
        ([message(name=["a", "x"])], "whole number"),
        ([message(name=[1])], "an id and a text"),
        ([message(parameters={"count": True, "trainable": 0, "bytes": 0})], "whole number"),
        ([message(end={"reason": "because", "steps": 0})], "reasons"),
        ([message(end={"reason": "limit", "steps": 1}), rows((Event.EMPTY_CACHE,))], "follows the end"),
    ],
)
def test_what_no_probe_writes_is_refused_with_its_place(frames: list[bytes], said: str) -> None:
    with pytest.raises(TraceError, match=said) as refused:
        read(*frames)
    assert 0 < refused.value.offset <= len(message(hello=HELLO)) + sum(map(len, frames))
    assert f"{refused.value.offset:,}" in str(refused.value)


def test_the_place_of_a_bad_event_is_that_of_its_row() -> None:
    with pytest.raises(TraceError) as refused:
        read(rows((Event.ALLOC, 1, 1), (Event.ALLOC, 2, 1)), rows((Event.ALLOC, 3, 1), (Event.FREE, 9)))
    head = len(message(hello=HELLO)) + 5 + 96
    assert refused.value.offset == head + 5 + 48


@pytest.mark.parametrize("content", [b"", message(), rows((Event.EMPTY_CACHE,)), message(hello={**HELLO, "probe": 9})])
def test_it_must_begin_with_a_hello_of_this_version(content: bytes) -> None:
    with pytest.raises(TraceError, match=r"hello|version"):
        read_events(io.BytesIO(content))


def test_no_more_is_read_than_the_limits_allow() -> None:
    content = message(hello=HELLO) + rows(*((Event.EMPTY_CACHE,),) * 11)
    with pytest.raises(TraceError, match="more than 10 events"):
        read_events(io.BytesIO(content), EventLimits(rows=10))
    with pytest.raises(TraceError, match="of messages"):
        read_events(io.BytesIO(message(hello=HELLO) * 3), EventLimits(message_bytes=50))


def test_text_of_the_script_cannot_steer_a_terminal_or_grow_without_bound() -> None:
    trace = read(
        message(warning="\x1b[2Jgone"), message(warning="x" * 10_000), *(message(warning=f"{n}") for n in range(999))
    )
    assert "\x1b" not in trace.warnings[0]
    assert len(trace.warnings[1]) == 2000
    assert len(trace.warnings) == 200


def _refusal(content: bytes) -> str | None:
    """What is said about a stream that is refused; nothing but TraceError may come."""
    try:
        read_events(io.BytesIO(content))
    except TraceError as error:
        return str(error)
    return None


@given(st.binary(max_size=400), st.booleans())
@settings(max_examples=examples(400))
def test_any_bytes_are_a_trace_or_a_clear_error(content: bytes, greeted: bool) -> None:
    said = _refusal((message(hello=HELLO) if greeted else b"") + content)
    assert said is None or said.startswith("event stream, byte ")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["count", "what", "reason"]), inner),
    max_leaves=6,
)


@given(st.sampled_from(["hello", "name", "parameters", "end", "stand_in", "assumption", "warning", "new"]), JSON)
@settings(max_examples=examples(400))
def test_any_message_is_read_or_a_clear_error(key: str, content: Any) -> None:
    said = _refusal(message(hello=HELLO) + message(**{key: content}))
    assert said is None or said.startswith("event stream, byte ")


@given(
    st.lists(st.tuples(st.integers(-1, 10), st.integers(-1, 6), st.integers(-1, 9), st.integers(-1, 2)), max_size=30)
)
@settings(max_examples=examples(400))
def test_any_rows_are_a_trace_that_can_be_replayed_or_a_clear_error(events: list[tuple[int, ...]]) -> None:
    try:
        trace = read(rows(*events))
    except TraceError:
        return
    alive: set[int] = set()
    for event, subject, *_ in trace.rows.tolist():
        if event == Event.ALLOC:
            assert subject not in alive
            alive.add(subject)
        elif event == Event.FREE:
            alive.remove(subject)
