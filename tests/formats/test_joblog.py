"""Logs of training jobs: lines, times, writers, whatever stands around a message."""

import random
import re
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kopt.formats.joblog import LineSplitter, Message, Precision, find_stamp, is_binary, read_message, stamps
from kopt.formats.joblog.lines import KEPT_BYTES


def split(pieces: list[bytes]) -> list[str]:
    splitter = LineSplitter()
    lines = [line for piece in pieces for line in splitter.feed(piece)]
    lines += splitter.close()
    assert [line.number for line in lines] == list(range(1, len(lines) + 1))
    return [line.text for line in lines]


def whole(log: bytes) -> list[str]:
    lines = re.split(r"\r\n|\n|\r", log.decode("utf-8", "replace"))
    return lines[:-1] if lines[-1] == "" else lines


@given(st.binary(max_size=300) | st.text("a█é\r\n", max_size=80).map(str.encode), st.data())
def test_lines_do_not_depend_on_the_pieces_they_come_in(log: bytes, data: st.DataObject) -> None:
    places = sorted(data.draw(st.lists(st.integers(0, len(log)), max_size=9)))
    pieces = [log[start:end] for start, end in zip([0, *places], [*places, len(log)], strict=True)]
    assert split(pieces) == whole(log)


def test_a_line_is_there_as_soon_as_its_return_is() -> None:
    splitter = LineSplitter()
    assert [line.text for line in splitter.feed(b"10%\r")] == ["10%"]
    assert list(splitter.feed(b"")) == []
    assert [line.text for line in splitter.feed(b"\nnext\r\r\n")] == ["next", ""]
    assert (splitter.pending, list(splitter.close())) == (0, [])


def test_of_a_line_without_end_both_ends_are_kept() -> None:
    splitter = LineSplitter()
    for _ in range(100):
        assert not list(splitter.feed(b"x" * 100_000))
    (line,) = splitter.feed(b"saved checkpoint\n")
    assert (line.size, len(line.text)) == (100 * 100_000 + 16, 2 * KEPT_BYTES)
    assert line.text.startswith("xxx")
    assert line.text.endswith("x" + "saved checkpoint")
    (once,) = splitter.feed(b"y" * 100_000 + b"end\n")
    assert (once.number, once.size, once.text) == (2, 100_003, "y" * KEPT_BYTES + "y" * (KEPT_BYTES - 3) + "end")


AT = datetime(2024, 9, 13, 7, 4, 9, 250_000, tzinfo=UTC)
FULL, NO_YEAR, NO_DAY = Precision.FULL, Precision.NO_YEAR, Precision.NO_DAY


@pytest.mark.parametrize(
    ("style", "precision"),
    [
        ("{:%Y-%m-%d %H:%M:%S},250 | INFO | step 3", FULL),
        ("[{:%Y-%m-%d %H:%M:%S},250][fairseq.trainer][INFO] - begin", FULL),
        ("[INFO|{:%Y-%m-%d %H:%M:%S}.25] trainer.py:3801 >> Saving", FULL),
        ("{:%Y-%m-%dT%H:%M:%S}.250Z step 3", FULL),
        ("{:%Y-%m-%d %H:%M:%S}.250000+00:00 step 3", FULL),
        ("{:%Y/%m/%d %H:%M:%S}.25 - mmengine - INFO - Saving", FULL),
        ("{:%m/%d/%Y %H:%M:%S}.25 - INFO - accelerate", FULL),
        ("[{:%d/%m/%y %H:%M:%S}.25 INFO] Saving", FULL),
        ("  8%|x | 1000/11900 [17:56<3:23:44, 1.12s/it]{:%m/%d/%Y %H:%M:%S}.25 - INFO - x", FULL),
        ("  8%|x | 1000/11900 [1:17:56:12<3:23:44, 1.12s/it]{:%Y-%m-%d %H:%M:%S}.25 - INFO - x", FULL),
        ("{:%a %b %d %H:%M:%S}.25 2024 epoch 3", FULL),
        ("{:%d/%b/%Y:%H:%M:%S}.25 epoch 3", FULL),
        ("1726211049.25 step=3", FULL),
        ("I{:%m%d %H:%M:%S}.250000 1235 checkpoint_manager.py:1512] Saving", NO_YEAR),
        ("{:%m/%d %H:%M:%S}.25 - mmengine - INFO - Saving", NO_YEAR),
        ("{:%b %d %H:%M:%S}.25 node7 train[12]: epoch 3", NO_YEAR),
        ("{:%H:%M:%S}.25 epoch 3", NO_DAY),
        ("[{:%H:%M:%S}.25] epoch 3", NO_DAY),
    ],
)
def test_a_time_is_read_in_every_style(style: str, precision: Precision) -> None:
    stamp = find_stamp(style.format(AT))
    assert stamp is not None
    year = {FULL: AT.year, NO_YEAR: 2000, NO_DAY: 1970}[precision]
    expected = AT.replace(year=year, **({"month": 1, "day": 1} if precision is NO_DAY else {}))
    assert (stamp.at_s, stamp.precision) == (expected.timestamp(), precision)


@given(st.integers(-14 * 4, 14 * 4), st.sampled_from(["%z", "zone"]))
def test_a_zone_is_taken_into_account(quarters: int, form: str) -> None:
    zone = timezone(timedelta(minutes=15 * quarters))
    there = AT.replace(microsecond=0).astimezone(zone)
    text = f"{there:%Y-%m-%dT%H:%M:%S%z} step 3" if form == "%z" else f"{there.isoformat()} step 3"
    stamp = find_stamp(text)
    assert stamp is not None
    assert stamp.at_s == AT.replace(microsecond=0).timestamp()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "step 3",
        "17:56<3:23:44, 1.12s/it]",
        "01:17:56<03:23:44",
        "12:00:00/13:00:00",
        "2024-13-01 10:00:00 x",
        "2024-02-30 10:00:00 x",
        "2024-02-03 25:00:00 x",
        "1726211049/2000000000 [",
        "loss 1726211049.5",
        "24:00:00 x",
        "eta: 0:14:57",
        "ratio 1:2:3",
        "99/99 10:00:00",
        "version 2024.01.02",
    ],
)
def test_what_is_no_time_is_not_taken_for_one(text: str) -> None:
    assert find_stamp(text) is None


@given(
    st.lists(st.sampled_from(["1", "10", "٣٣", ":", ":", "59:", "x", " ", "9:10:11", "10:11:12"]), max_size=9).map(
        "".join
    )
)
def test_the_quick_look_for_a_time_of_day_finds_the_first_one(text: str) -> None:
    quick, plain = stamps._HAS_CLOCK.search(text), re.search(r"\d\d:\d\d:\d\d", text)
    assert (quick and (quick.start() - 2, quick.end())) == (plain and plain.span())


@pytest.mark.parametrize(
    ("line", "text", "writer", "at_s"),
    [
        ("\x1b[32mINFO\x1b[0m saved\x1b[K", "INFO saved", "", None),
        ("[[37m12/09/24 13:56:50[0m] saved", "[12/09/24 13:56:50] saved", "", 1733752610.0),
        ("\x08\x08\x0812/30 [====>...]", "12/30 [====>...]", "", None),
        ("\x1b]0;title\x07saved", "saved", "", None),
        ("1970-01-01T00:01:00.5Z stdout F saved", "saved", "", 60.5),
        ("1970-01-01T00:01:00+00:01 stderr P ", "", "", 0.0),
        ("1970-01-01T00:01:00Z stdout F 1970-01-01 00:00:10 saved", "1970-01-01 00:00:10 saved", "", 10.0),
        ('{"log": "saved\\n", "stream": "stderr", "time": "1970-01-01T00:00:02Z"}', "saved", "", 2.0),
        (
            '{"levelname": "INFO", "message": "saved", "asctime": "1970-01-01 00:00:03,5", "rank": 2}',
            "saved",
            "rank2",
            3.5,
        ),
        ('{"event": "saved", "ts": 1726211049.25}', "saved", "", AT.timestamp()),
        ('{"log": "{\\"msg\\": \\"saved\\"}"}', '{"msg": "saved"}', "", None),
        ('{"epoch": 1, "loss": 2.5}', '{"epoch": 1, "loss": 2.5}', "", None),
        ("{'loss': 0.003, 'epoch': 24.94}", "{'loss': 0.003, 'epoch': 24.94}", "", None),
        ('{"message": ["saved"]}', '{"message": ["saved"]}', "", None),
        ("[rank3]:[titan] saved", "[titan] saved", "rank3", None),
        ("[default0]:saved", "saved", "default0", None),
        ("[1,12]<stdout>:saved", "saved", "1,12", None),
        ("(RayTrainWorker pid=77, ip=10.0.0.3) saved", "saved", "RayTrainWorker pid=77, ip=10.0.0.3", None),
        ("[pod/train-0/main] [rank1]: saved", "saved", "train-0/rank1", None),
        ("12: saved", "saved", "12", None),
        ("vm-07-05: saved", "saved", "vm-07-05", None),
        ("[INFO] [PID:7] [RANK:4] saved", "[INFO] [PID:7] [RANK:4] saved", "rank4", None),
        ("INFO:absl:[process=3][thread=Main] saved", "INFO:absl:[process=3][thread=Main] saved", "rank3", None),
        ("rank   0: capabilities = 7.0", "rank   0: capabilities = 7.0", "", None),
        ("lora rank 8, alpha 16", "lora rank 8, alpha 16", "", None),
        ("rank: 8", "rank: 8", "", None),
        ("[rank: 5] Seed set", "[rank: 5] Seed set", "rank5", None),
        ("12:00 saved", "12:00 saved", "", None),
    ],
)
def test_what_stands_around_a_message_is_taken_off(line: str, text: str, writer: str, at_s: float | None) -> None:
    found = read_message(line)
    assert (found.text, found.writer, found.stamp.at_s if found.stamp else None) == (text, writer, at_s)


@pytest.mark.parametrize("line", ['{"a":' * 20_000 + "}", "[" * 50_000, '{"msg": "' + "x" * 70_000 + '"}', "\x00" * 9])
def test_hostile_lines_are_messages_like_any_other(line: str) -> None:
    assert isinstance(read_message(line), Message)


PARTS = [
    "\x1b[",
    "m",
    "[rank1]: ",
    '{"msg": "',
    '"}',
    "2024-01-02T03:04:05Z ",
    "stdout F ",
    "99:99:99",
    "I1231 23:59:60.1 ",
    "é",
    "\r",
]


@given(st.text(max_size=60) | st.lists(st.sampled_from(PARTS), max_size=12).map("".join))
def test_any_text_is_a_message(line: str) -> None:
    found = read_message(line)
    assert len(found.text) <= len(line)


@pytest.mark.parametrize(
    ("head", "binary"),
    [
        (b"\x7fELF\x02\x01\x01" + bytes(60) + b"text" * 20, True),
        (random.Random(0).randbytes(4096), True),
        ("loss 0,5\r 10%|█ | 1/10\n\x1b[31mfehler\x1b[0m größe\n".encode() * 50, False),
        ("größe loss\n".encode("latin-1") * 50, False),
        (bytes(5000) + b"step 1 loss 2\n" * 50, False),
        (b"step 1 loss 2\n" * 50 + b"\0\0\0", False),
        (b"", False),
    ],
)
def test_a_binary_file_is_told_from_a_log(head: bytes, binary: bool) -> None:
    assert is_binary(head) is binary
