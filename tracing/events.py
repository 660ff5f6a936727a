"""Decodes the event stream of a probe, version 1, without trusting it: the script that ran could write to the pipe.

Frames are a header ``<BI`` (kind, payload length) and a payload: kind 0 is one JSON object, kind 1 a block of rows of
six little-endian int64: event, subject, a, b, module, op. A stream that merely stops is a trace without an end;
everything else that is not as agreed raises ``TraceError`` with the place.
"""

import json
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum, IntFlag
from typing import Any, BinaryIO, NoReturn

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.int64]

COLUMNS = 6
EVENT, SUBJECT, A, B, MODULE, OP = range(COLUMNS)
_ROW_BYTES = 8 * COLUMNS
_HEADER = struct.Struct("<BI")
_MESSAGE, _ROWS = 0, 1
_VERSION = 1
MAX_PAYLOAD_BYTES = 16 * 2**20
MAX_ALLOCATION_BYTES = 1 << 46
"""64 TiB in one tensor: far above any GPU, far below what sums could overflow on."""
MAX_RANK = 1 << 16
_MAX_ID = 1 << 53
_MAX_SIDE = 1 << 40
_MAX_TEXT = 2000
_MAX_REMARKS = 200


class Event(IntEnum):
    """What a row says; the meaning of its columns stands beside each."""

    ALLOC = 1
    """subject storage, a bytes asked for, b stream"""
    FREE = 2
    """subject storage"""
    OP = 3
    """subject sequence number, a FLOPs, b bytes moved"""
    PHASE = 4
    """subject phase name, a step"""
    ROLE = 5
    """subject storage, a role"""
    RECORD_STREAM = 6
    """subject storage, b stream"""
    EMPTY_CACHE = 7
    WORKSPACE = 8
    """subject name, a bytes, b stream"""
    RANK = 9
    """subject rank of the rows that follow"""
    CONVOLUTION = 10
    """subject shape, a passes (``Pass``), b stream; after the tensors that it makes"""


class Pass(IntFlag):
    """What a convolution computes, each by an algorithm of its own, and whether the fastest of all is searched for."""

    FORWARD = 1
    INPUT_GRADIENT = 2
    WEIGHT_GRADIENT = 4
    SEARCHED = 8


class Role(IntEnum):
    """What a storage is for."""

    TEMPORARY = 0
    WEIGHTS = 1
    GRADIENTS = 2
    OPTIMIZER = 3
    BUFFERS = 4
    INPUTS = 5
    ACTIVATIONS = 6


class TraceError(ValueError):
    """The stream is not what a probe writes. ``offset`` is the byte at which that shows."""

    def __init__(self, message: str, offset: int) -> None:
        super().__init__(f"event stream, byte {offset:,}: {message}")
        self.offset = offset


@dataclass(frozen=True)
class EventLimits:
    """How much is read at most."""

    rows: int = 8_000_000
    names: int = 500_000
    convolutions: int = 100_000
    message_bytes: int = 256 * 2**20


@dataclass(frozen=True)
class Hello:
    """Where the script ran: versions, the allocator's settings, and its arguments."""

    torch: str
    cuda: str | None
    hip: str | None
    python: str
    allocator_conf: str
    argv: tuple[str, ...]


@dataclass(frozen=True)
class StandIn:
    """Something absent for which the probe put a stand-in."""

    what: str
    why: str


@dataclass(frozen=True)
class Convolution:
    """Sizes of a convolution. ``source`` is (batch, channels, *spatial), ``weight`` (out, in / groups, *kernel), or
    (in, out / groups, *kernel) of a ``transposed`` one; the rest has one number per spatial dimension or just one."""

    source: tuple[int, ...]
    weight: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int
    transposed: bool
    dtype: str
    channels_last: bool


@dataclass(frozen=True)
class Parameters:
    """Parameters of the models that were built."""

    count: int
    trainable: int
    bytes: int


@dataclass(frozen=True)
class End:
    """How the run ended: ``steady``, ``finished``, ``limit``, ``error`` or ``unsupported``."""

    reason: str
    steps: int
    error: str | None


_END_REASONS = ("steady", "finished", "limit", "error", "unsupported")


@dataclass(frozen=True)
class Trace:
    """A decoded stream. ``rows`` is (n, 6), read-only; ``end`` is None where the stream stopped early."""

    rows: Rows
    names: Mapping[int, str]
    hello: Hello
    end: End | None = None
    parameters: Parameters | None = None
    assumptions: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    stand_ins: tuple[StandIn, ...] = ()
    convolutions: Mapping[int, Convolution] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def ranks(self) -> tuple[int, ...]:
        """Ranks that appear; (0,) for a single process."""
        own = self.rows[self.rows[:, EVENT] == Event.RANK, SUBJECT]
        starts_plain = len(self.rows) > 0 and self.rows[0, EVENT] != Event.RANK
        return tuple(sorted({*own.tolist(), *([0] if starts_plain or not len(own) else [])}))

    def of_rank(self, rank: int) -> Rows:
        """The rows of one rank, in order, without the marks between ranks.

        Phases are every rank's. A storage's role may be reported after another GPU's turn has come: it belongs to the
        rank that has the storage.
        """
        event, subject = self.rows[:, EVENT], self.rows[:, SUBJECT]
        is_marker = event == Event.RANK
        if not is_marker.any():
            return self.rows if rank == 0 else self.rows[:0]
        places = np.maximum.accumulate(np.where(is_marker, np.arange(len(self.rows)), -1))
        own = np.where(places < 0, 0, subject[np.maximum(places, 0)]) == rank
        stored = np.isin(subject, subject[own & (event == Event.ALLOC)])
        own = np.where(event == Event.ROLE, stored, own | (event == Event.PHASE))
        array: Rows = self.rows[own & ~is_marker]
        return array


def read_events(stream: BinaryIO, limits: EventLimits | None = None) -> Trace:
    """Read a stream to its end. Raises TraceError for anything that a probe does not write."""
    return _Decoder(stream, limits or EventLimits()).read()


@dataclass
class _Decoder:
    """One stream being read. ``offset`` is that of the frame in hand."""

    stream: BinaryIO
    limits: EventLimits
    offset: int = 0
    message_bytes: int = 0
    row_count: int = 0
    names: dict[int, str] = field(default_factory=lambda: {0: ""})
    blocks: list[Rows] = field(default_factory=list)
    starts: list[tuple[int, int]] = field(default_factory=list)
    hello: Hello | None = None
    end: End | None = None
    parameters: Parameters | None = None
    assumptions: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    stand_ins: list[StandIn] = field(default_factory=list)
    convolutions: dict[int, Convolution] = field(default_factory=dict)

    def read(self) -> Trace:
        while (frame := self._frame()) is not None:
            kind, payload = frame
            if self.end is not None:
                self._fail("something follows the end")
            if self.hello is None and kind != _MESSAGE:
                self._fail("the first frame must be the probe's hello")
            if kind == _MESSAGE:
                self._message(payload)
            else:
                self._block(payload)
            self.offset += _HEADER.size + len(payload)
        if self.hello is None:
            self._fail("it stops before the probe's hello; the script's interpreter did not start the probe")
        rows = np.concatenate(self.blocks) if self.blocks else np.empty((0, COLUMNS), np.int64)
        rows.setflags(write=False)
        self._check_storages(rows)
        return Trace(
            rows,
            self.names,
            self.hello,
            self.end,
            self.parameters,
            tuple(self.assumptions),
            tuple(self.warnings),
            tuple(self.stand_ins),
            self.convolutions,
        )

    def _frame(self) -> tuple[int, bytes] | None:
        """The next whole frame; None at the end of the stream, also where that tears a frame."""
        header = _read(self.stream, _HEADER.size)
        if len(header) < _HEADER.size:
            return None
        kind, length = _HEADER.unpack(header)
        if kind not in (_MESSAGE, _ROWS):
            self._fail(f"frames of kind {kind} do not exist")
        if length > MAX_PAYLOAD_BYTES:
            self._fail(f"a frame of {length:,} bytes; at most {MAX_PAYLOAD_BYTES:,} are allowed")
        payload = _read(self.stream, length)
        return (kind, payload) if len(payload) == length else None

    def _message(self, payload: bytes) -> None:
        self.message_bytes += len(payload)
        if self.message_bytes > self.limits.message_bytes:
            self._fail(f"more than {self.limits.message_bytes:,} bytes of messages")
        try:
            message = json.loads(payload.decode("utf-8"))
        except (ValueError, RecursionError) as error:
            self._fail(f"not a JSON message ({str(error)[:80]})")
        if not isinstance(message, dict):
            self._fail("a message must be a JSON object")
        if (self.hello is None) != ("hello" in message):
            self._fail("the probe's hello comes first, and once")
        for key, content in message.items():
            if key in _READERS:
                _READERS[key](self, content)

    def _block(self, payload: bytes) -> None:
        if len(payload) % _ROW_BYTES:
            self._fail(f"a block of {len(payload):,} bytes holds no whole number of rows")
        rows = np.frombuffer(payload, dtype="<i8").reshape(-1, COLUMNS)
        self.row_count += len(rows)
        if self.row_count > self.limits.rows:
            self._fail(f"more than {self.limits.rows:,} events")
        self.starts.append((self.row_count - len(rows), self.offset + _HEADER.size))
        self._check_rows(rows)
        self.blocks.append(rows.astype(np.int64, copy=False))

    def _check_rows(self, rows: Rows) -> None:
        event = rows[:, EVENT]
        self._refuse(rows, (event < Event.ALLOC) | (event > max(Event)), "an event that does not exist")
        self._refuse(rows, rows[:, SUBJECT] < 0, "a negative subject")
        self._refuse(rows, rows[:, SUBJECT] > _MAX_ID, "a subject that is no id")
        self._refuse(rows, (rows[:, A] < 0) | (rows[:, B] < 0), "a negative amount, stream or step")
        sized = (event == Event.ALLOC) | (event == Event.WORKSPACE)
        self._refuse(rows, sized & (rows[:, A] > MAX_ALLOCATION_BYTES), "an allocation beyond any machine's memory")
        self._refuse(rows, (event == Event.ROLE) & (rows[:, A] > max(Role)), "a role that does not exist")
        self._refuse(rows, (event == Event.RANK) & (rows[:, SUBJECT] >= MAX_RANK), "a rank beyond any cluster")
        folded = rows[event == Event.CONVOLUTION]
        for item in np.unique(folded[:, SUBJECT]).tolist():
            if item not in self.convolutions:
                self._fail(f"convolution {item} is used before it is told")
        if ((folded[:, A] & ~int(Pass.SEARCHED) < 1) | (folded[:, A] > sum(Pass))).any():
            self._fail("a convolution without a pass, or with one that does not exist")
        named = rows[(event == Event.PHASE) | (event == Event.WORKSPACE), SUBJECT]
        used = np.unique(np.concatenate([rows[:, MODULE], rows[:, OP], named]))
        for item in used.tolist():
            if item not in self.names:
                self._fail(f"name {item} is used before it is given")

    def _check_storages(self, rows: Rows) -> None:
        """Each storage is allocated once, freed at most once and afterwards, and only known ones are spoken of."""
        event, subject = rows[:, EVENT], rows[:, SUBJECT]
        made = np.flatnonzero(event == Event.ALLOC)
        ids, order = np.unique(subject[made], return_index=True)
        if len(ids) != len(made):
            twice = np.setdiff1d(np.arange(len(made)), order)
            self._fail_at(int(made[twice[0]]), "a storage is allocated twice")
        born = made[order]
        about = np.flatnonzero(np.isin(event, (Event.FREE, Event.ROLE, Event.RECORD_STREAM)))
        row = np.searchsorted(ids, subject[about])
        valid = row < len(ids)
        valid[valid] = ids[row[valid]] == subject[about][valid]
        valid[valid] = born[row[valid]] < about[valid]
        if not valid.all():
            self._fail_at(int(about[~valid][0]), "a storage that was not allocated before")
        freed = event[about] == Event.FREE
        died = np.full(len(ids), len(rows))
        ends, count = np.unique(row[freed], return_counts=True)
        if (count > 1).any():
            again = np.flatnonzero(freed & (row == ends[count > 1][0]))[1]
            self._fail_at(int(about[again]), "a storage is freed twice")
        died[row[freed]] = about[freed]
        late = (event[about] == Event.RECORD_STREAM) & (about > died[row])
        if late.any():
            self._fail_at(int(about[late][0]), "a freed storage is used on a stream")

    def _refuse(self, rows: Rows, wrong: NDArray[np.bool_], what: str) -> None:
        if wrong.any():
            self._fail_at(self.row_count - len(rows) + int(np.flatnonzero(wrong)[0]), what)

    def _fail_at(self, row: int, message: str) -> NoReturn:
        first, offset = max(start for start in self.starts if start[0] <= row)
        raise TraceError(f"event {row:,}: {message}", offset + (row - first) * _ROW_BYTES)

    def _fail(self, message: str) -> NoReturn:
        raise TraceError(message, self.offset)

    def _table(self, content: Any, what: str) -> dict[str, Any]:
        if not isinstance(content, dict):
            self._fail(f"{what} must be an object")
        return content

    def _text(self, content: Any, what: str) -> str:
        if not isinstance(content, str):
            self._fail(f"{what} must be text")
        return displayable(content)

    def _number(self, content: Any, what: str) -> int:
        if not isinstance(content, int) or isinstance(content, bool) or not 0 <= content < _MAX_ID:
            self._fail(f"{what} must be a whole number from 0")
        return content

    def _read_hello(self, content: Any) -> None:
        table = self._table(content, "hello")
        if table.get("probe") != _VERSION:
            self._fail(f"a probe of version {str(table.get('probe'))[:20]}; version {_VERSION} is read here")
        argv = table.get("argv", [])
        if not isinstance(argv, list):
            self._fail("argv must be a list")
        versions = {key: self._text(table.get(key) or "", key) for key in ("torch", "cuda", "hip", "python")}
        self.hello = Hello(
            versions["torch"],
            versions["cuda"] or None,
            versions["hip"] or None,
            versions["python"],
            self._text(table.get("allocator_conf") or "", "allocator_conf"),
            tuple(self._text(word, "an argument") for word in argv),
        )

    def _read_name(self, content: Any) -> None:
        if not isinstance(content, list) or len(content) != 2:
            self._fail("a name is an id and a text")
        number, text = self._number(content[0], "the id of a name"), self._text(content[1], "a name")
        if number in self.names:
            self._fail(f"name {number} is given twice")
        if len(self.names) >= self.limits.names:
            self._fail(f"more than {self.limits.names:,} names")
        self.names[number] = text

    def _read_assumption(self, content: Any) -> None:
        _add_remark(self.assumptions, self._text(content, "an assumption"))

    def _read_warning(self, content: Any) -> None:
        _add_remark(self.warnings, self._text(content, "a warning"))

    def _read_stand_in(self, content: Any) -> None:
        table = self._table(content, "stand_in")
        _add_remark(self.stand_ins, StandIn(self._text(table.get("what"), "what"), self._text(table.get("why"), "why")))

    def _read_parameters(self, content: Any) -> None:
        table = self._table(content, "parameters")
        self.parameters = Parameters(*(self._number(table.get(key), key) for key in ("count", "trainable", "bytes")))

    def _read_convolution(self, content: Any) -> None:
        table = self._table(content, "a convolution")
        number = self._number(table.get("id"), "the id of a convolution")
        if number in self.convolutions:
            self._fail(f"convolution {number} is told twice")
        if len(self.convolutions) >= self.limits.convolutions:
            self._fail(f"more than {self.limits.convolutions:,} convolutions")
        shapes = [self._sizes(table.get(key), key) for key in ("input", "weight", "stride", "padding", "dilation")]
        source, weight, *rest = shapes
        if not 3 <= len(source) == len(weight) <= 5 or any(len(item) not in (1, len(source) - 2) for item in rest):
            self._fail("a convolution has one to three spatial dimensions")
        groups = self._number(table.get("groups"), "groups")
        flags = (table.get("transposed"), table.get("channels_last"))
        if not groups or 0 in rest[0] or any(not isinstance(flag, bool) for flag in flags):
            self._fail("a convolution has groups and strides of one or more, and flags that are true or false")
        self.convolutions[number] = Convolution(
            source,
            weight,
            rest[0],
            rest[1],
            rest[2],
            groups,
            bool(flags[0]),
            self._text(table.get("dtype"), "dtype"),
            bool(flags[1]),
        )

    def _sizes(self, content: Any, what: str) -> tuple[int, ...]:
        if not isinstance(content, list) or not 1 <= len(content) <= 5:
            self._fail(f"{what} must be one to five sizes")
        sizes = tuple(self._number(item, f"a size of {what}") for item in content)
        if max(sizes) > _MAX_SIDE:
            self._fail(f"{what} is beyond any tensor")
        return sizes

    def _read_end(self, content: Any) -> None:
        table = self._table(content, "end")
        if table.get("reason") not in _END_REASONS:
            self._fail(f"it ends for none of the reasons {', '.join(_END_REASONS)}")
        error = table.get("error")
        text = None if error is None else self._text(error, "error")
        self.end = End(table["reason"], self._number(table.get("steps"), "steps"), text)


_READERS: Mapping[str, Callable[[_Decoder, Any], None]] = {
    "hello": _Decoder._read_hello,
    "name": _Decoder._read_name,
    "assumption": _Decoder._read_assumption,
    "warning": _Decoder._read_warning,
    "stand_in": _Decoder._read_stand_in,
    "parameters": _Decoder._read_parameters,
    "convolution": _Decoder._read_convolution,
    "end": _Decoder._read_end,
}


def displayable(text: str) -> str:
    """Text of a script as it may be shown: at most 2,000 characters, none that steers a terminal, no lone surrogate."""
    short = text if len(text) <= _MAX_TEXT else text[: _MAX_TEXT - 1] + "…"
    return "".join(c if c.isprintable() or c in "\n\t" else "�" for c in short)


def _add_remark(remarks: list[Any], remark: Any) -> None:
    """Keep a remark unless it was made before or there are too many."""
    if len(remarks) < _MAX_REMARKS and remark not in remarks:
        remarks.append(remark)


def _read(stream: BinaryIO, count: int) -> bytes:
    """Exactly ``count`` bytes, or fewer at the end of the stream; a pipe gives them in pieces."""
    parts: list[bytes] = []
    while count > 0 and (part := stream.read(count)):
        parts.append(part)
        count -= len(part)
    return b"".join(parts)
