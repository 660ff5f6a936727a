"""Bytes of logs become numbered lines, the same ones however they arrive and wherever reading begins again."""

import random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kopt.agents.logtail.records import ContainerLog, Decoder, LogLine, Origin, PlainLog, read_time

PIECES = st.lists(st.integers(1, 40), min_size=1, max_size=40)
TEXT = st.lists(st.sampled_from([b"step 1", b"\r", b"\n", b"\r\n", b"saved", b"\xff\xfe", b"x" * 30, b""]), max_size=40)

RECORDS = st.lists(
    st.tuples(
        st.sampled_from(["stdout", "stderr"]),
        st.sampled_from(["P", "F"]),
        st.sampled_from([b"a", b"b\r", b"10%\r20%", b"", b"\r", b"saved it"]),
    ),
    max_size=30,
)


def pieces(content: bytes, sizes: list[int]) -> list[bytes]:
    found, at, n = [], 0, 0
    while at < len(content):
        found.append(content[at : at + sizes[n % len(sizes)]])
        at, n = at + len(found[-1]), n + 1
    return found


def read(decoder: Decoder, parts: list[bytes]) -> tuple[list[LogLine], list[Origin]]:
    lines: list[LogLine] = []
    origins = []
    for part in parts:
        lines += decoder.feed(part)
        if decoder.origin is not None:
            origins.append(decoder.origin)
    return lines, origins


def cri(stream: str, tag: str, content: bytes, at: int = 0) -> bytes:
    return f"2026-03-01T10:00:{at % 60:02d}.123456789Z {stream} {tag} ".encode() + content + b"\n"


@given(TEXT, PIECES)
def test_plain_lines_have_the_same_numbers_wherever_reading_begins_again(text: list[bytes], sizes: list[int]) -> None:
    content = b"".join(text)
    whole, _ = read(PlainLog(), [content])
    lines, origins = read(PlainLog(), pieces(content, sizes))
    assert lines == whole
    for origin in origins:
        assert PlainLog(origin.number).feed(content[origin.position :]) == whole[origin.number - 1 :]


@given(RECORDS, PIECES)
@example([("stdout", "P", b"b\r"), ("stderr", "P", b"a"), ("stdout", "F", b"")], [1])
@example([("stderr", "P", b"b\r"), ("stderr", "P", b""), ("stderr", "F", b"")], [1])
def test_container_lines_have_the_same_numbers_wherever_reading_begins_again(
    records: list[tuple[str, str, bytes]], sizes: list[int]
) -> None:
    content = b"".join(cri(stream, tag, text, n) for n, (stream, tag, text) in enumerate(records))
    whole, _ = read(ContainerLog(), [content])
    decoder = ContainerLog()
    lines, origins = read(decoder, pieces(content, sizes))
    assert lines == whole
    assert decoder.number == len(whole) + 1
    for origin in origins:
        again = ContainerLog(origin.number)
        told = again.feed(content[origin.position :])
        assert len(told) == len(whole) - origin.number + 1
        assert again.number == decoder.number


def test_parts_of_a_line_are_joined_for_each_stream_by_itself() -> None:
    content = cri("stdout", "P", b"saving ") + cri("stderr", "F", b"warning", 1) + cri("stdout", "F", b"checkpoint", 2)
    assert [line.text for line in ContainerLog().feed(content)] == ["warning", "saving checkpoint"]


def test_a_line_has_the_time_of_the_record_that_ends_it() -> None:
    (line,) = ContainerLog().feed(cri("stdout", "P", b"a", 1) + cri("stdout", "F", b"b", 5))
    assert line.at_s == pytest.approx(1772359205.123456)
    assert read_time(b"2026-03-01T11:00:05.123456789+01:00") == line.at_s
    assert read_time(b"yesterday") is None


def test_dockers_records_and_what_is_none_at_all_are_lines_too() -> None:
    content = (
        b'{"log":"step 1\\n","stream":"stdout","time":"2026-03-01T10:00:00.5Z"}\n' + b"what is this\n" + b'{"log":\n'
    )
    lines = ContainerLog().feed(content)
    assert [line.text for line in lines] == ["step 1", "what is this", '{"log":']
    assert (lines[0].at_s is None, lines[1].at_s) == (False, None)


@pytest.mark.parametrize("make", [PlainLog, ContainerLog])
def test_garbage_and_endless_lines_take_little_memory_and_are_no_error(make: type[PlainLog | ContainerLog]) -> None:
    generator = random.Random(1)
    decoder = make()
    lines = 0
    for _ in range(64):
        lines += len(decoder.feed(generator.randbytes(1 << 16)))
    assert lines > 1000
    for _ in range(64):
        lines += len(decoder.feed(b"x" * (1 << 16)))
    before = decoder.number
    assert len(decoder.feed(b"x" * (1 << 20))) == 0
    (last,) = decoder.feed(b"end\n")
    assert decoder.number == before + 1
    assert len(last.text) <= 16_384
    assert last.text.endswith("end")
