"""Logs of nccl-tests and rccl-tests (``all_reduce_perf`` and its like), one or several runs, among NCCL's own messages.

Source: ``src/common.cu`` of nccl-tests. Columns are found by their headings. A run ends with its average bus bandwidth,
the mean over all rows out of place and in place: a row that got lost shows in it.
"""

import math
import re
from dataclasses import dataclass, field

from kopt.core.hardware.collectives import CollectiveLog, CollectiveMeasurement, CollectiveRank, CollectiveRun
from kopt.core.units import Bytes
from kopt.formats.topology.parser import TextParser
from kopt.formats.topology.text import FormatError, Line, Source, Word, unbroken

TOOL = "nccl-tests"

_STARTING = re.compile(r"#?\s*Collective test starting:\s*(\w+?)(?:_perf(?:_mpi)?)?\s*$")
_PARAMETERS = re.compile(
    r"#\s*nThread\s+\d+\s+nGpus\s+\d+\s+minBytes\s+(\d{1,15})\s+maxBytes\s+(\d{1,15})\s+step:\s+(\d{1,15})\((factor|bytes)\)"
)
_REDUCED = re.compile(r"#\s*Reducing maxBytes to (\d{1,15}) due to memory limitation")
_COMMAND = re.compile(
    r"\b(all_reduce|all_gather|reduce_scatter|reduce|broadcast|alltoallv?|sendrecv|scatter|gather|hypercube)_perf(?:_mpi)?\b"
)
_RANK = re.compile(
    r"#\s*Rank\s+(\d+)\s+(?:Group\s+\d+\s+)?Pid\s+\d+\s+(?:on\s+(\S+)\s+)?device\s+(\d+)\s+\[([0-9a-fA-Fx:.]+)\]\s*(.*?)\s*$"
)
_RANK_LIKE = re.compile(r"#\s*Rank\s+\d")
_HEADING = re.compile(r"#\s+size\s+count\s")
_ROW = re.compile(r"\s*\d+\s+\d+\s+[a-z]")
_AVERAGE = re.compile(r"#\s*Avg bus bandwidth\s*:\s*(\S+)(?:\s+GB/s)?(?:\s+(?:OK|FAILED))?\s*$")
_REDUCTIONS = {"", "none", "sum", "prod", "max", "min", "avg", "mulsum", "all"}
_TYPES = {
    "int8",
    "uint8",
    "char",
    "int32",
    "uint32",
    "int",
    "int64",
    "uint64",
    "half",
    "float16",
    "float",
    "double",
    "bfloat16",
    "fp8_e4m3",
    "fp8_e5m2",
    "f8e4m3",
    "f8e5m2",
}


@dataclass
class _Run:
    collective: str
    line: Line
    ranks: list[CollectiveRank] = field(default_factory=list)
    least: int = 0
    most: int = 0
    step: int = 0
    is_factor: bool = True
    columns: tuple[str, ...] = ()
    sizes: list[int] = field(default_factory=list)
    rows: list[CollectiveMeasurement] = field(default_factory=list)
    average: float | None = None


def recognises(source: Source) -> bool:
    return source.has(_PARAMETERS) or source.has(_HEADING) or source.has(_RANK) or source.has(_AVERAGE)


def parse(source: Source) -> CollectiveLog:
    """Raises FormatError."""
    runs: list[_Run] = []
    name = ""
    for line in source.lines:
        if started := _STARTING.match(line.text):
            name = started[1]
        elif match := _PARAMETERS.match(line.text):
            _finished(runs)
            runs.append(_Run(name, line, [], int(match[1]), int(match[2]), int(match[3]), match[4] == "factor"))
        elif (reduced := _REDUCED.match(line.text)) and runs:
            runs[-1].most = int(reduced[1])
        elif command := _COMMAND.search(line.text):
            name = _concluded(line, command[1], runs) if "concluded" in line.text else command[1]
        else:
            _read(line, runs, name)
    if not runs:
        raise FormatError("there is no run in it: no line '# nThread …'")
    _finished(runs)
    return CollectiveLog(
        TOOL, tuple([CollectiveRun(run.collective, tuple(run.ranks), tuple(run.rows), run.average) for run in runs])
    )


def _read(line: Line, runs: list[_Run], name: str) -> None:
    run = runs[-1] if runs else None
    if _RANK_LIKE.match(line.text):
        if run is None or run.rows:
            raise line.error("a rank outside of a run; the line '# nThread …' is missing")
        run.ranks.append(_rank(line, len(run.ranks)))
    elif _HEADING.match(line.text):
        if run is None or run.columns:
            raise line.error("headings outside of a run; the line '# nThread …' is missing")
        run.columns = tuple([word.text for word in line.tokens()][1:])
    elif average := _AVERAGE.match(line.text):
        if run is None or run.average is not None:
            raise line.error("an average outside of a run")
        unbroken(line, "the average")
        run.average = _number(line.word(average.start(1), average[1]))
        _check(run, line)
    elif _ROW.match(line.text):
        if run is None or not run.columns or run.average is not None:
            raise line.error("a row of figures without headings above it")
        run.rows += _row(line, run.columns)
        run.sizes.append(_whole(line.tokens()[0]))


def _with_reduction(tokens: tuple[Word, ...], columns: tuple[str, ...]) -> tuple[Word, ...]:
    """Older versions leave the reduction blank where there is none."""
    at = columns.index("redop") if "redop" in columns else len(tokens)
    if len(tokens) != len(columns) - 1 or at >= len(tokens) or not tokens[at].text[:1].isdigit():
        return tokens
    return (*tokens[:at], Word("", tokens[at].line, tokens[at].column), *tokens[at:])


def _concluded(line: Line, name: str, runs: list[_Run]) -> str:
    """What a run says at its end that it was. Nothing is known of the next run by it."""
    if runs:
        if runs[-1].collective not in ("", name):
            raise line.error(f"the run of {runs[-1].collective} ends as one of {name}")
        runs[-1].collective = name
    return ""


def _finished(runs: list[_Run]) -> None:
    run = runs[-1] if runs else None
    if run is None:
        return
    if run.average is None:
        raise run.line.error("the run that begins here has no average at its end: the log is cut")
    if not run.ranks:
        raise run.line.error("the run that begins here does not list its ranks")
    ranks = len(run.ranks)
    per_host = {sum(1 for rank in run.ranks if rank.host == host) for host in {rank.host for rank in run.ranks}}
    if len(per_host) == 2 and max(per_host) - min(per_host) == 1:
        raise run.line.error("a host of the run that begins here has a rank less than the others: a line is missing")
    factors = {"all_reduce": 2 * (ranks - 1) / ranks}
    factors |= dict.fromkeys(("all_gather", "reduce_scatter", "alltoall"), (ranks - 1) / ranks)
    factor = factors.get(run.collective)
    for row in run.rows if factor is not None else ():
        expected = row.algbw_gigabytes_per_s * factor  # type: ignore[operator]
        if abs(row.busbw_gigabytes_per_s - expected) > 0.02 + 0.0008 * expected:
            message = f"{row.busbw_gigabytes_per_s:g} GB/s on the bus are not those of {ranks} ranks ({expected:.2f})"
            raise run.line.error(f"{message} in the run that begins here: ranks or figures are damaged")


def _rank(line: Line, expected: int) -> CollectiveRank:
    match = _RANK.match(line.text)
    if match is None or len(match[1]) > 7 or len(match[3]) > 4:
        raise line.error("this is no line of a rank")
    if int(match[1]) != expected:
        raise line.error(f"rank {expected} is expected, not {int(match[1])}")
    pci = match[4].lower()
    return CollectiveRank(expected, match[2] or "", int(match[3]), pci if ":" in pci else "", match[5])


def _row(line: Line, columns: tuple[str, ...]) -> list[CollectiveMeasurement]:
    tokens = _with_reduction(line.tokens(), columns)
    if len(tokens) != len(columns):
        raise line.error(f"{len(tokens)} figures under {len(columns)} headings")
    cells = dict(zip(columns, tokens, strict=False))
    size = _whole(tokens[0])
    if "type" not in cells or cells["type"].text not in _TYPES:
        raise line.error("the type of the elements is unknown")
    places = [n for n, column in enumerate(columns) if column == "time"]
    collective_measurements = []
    for n, column in enumerate(places):
        group = tokens[column : column + 4]
        if columns[column : column + 3] != ("time", "algbw", "busbw"):
            raise line.error("the headings are not time, algbw, busbw")
        if all(word.text == "N/A" for word in group[:3]):
            continue
        time, algbw, busbw = (_number(word) for word in group[:3])
        wrong = group[3].text if len(group) > 3 and columns[column + 3] == "#wrong" else "N/A"
        _plausible(line, size, time, algbw, busbw)
        redop = cells["redop"].text if "redop" in cells else ""
        if redop not in _REDUCTIONS:
            raise line.error(f"{redop[:40]!r} is no reduction")
        collective_measurements.append(
            CollectiveMeasurement(
                Bytes(size),
                cells["type"].text,
                "" if redop == "none" else redop,
                n > 0,
                time,
                algbw,
                busbw,
                None if wrong == "N/A" else _whole(group[3]),
            )
        )
    return collective_measurements


def _plausible(line: Line, size: int, time_us: float, algbw: float, busbw: float) -> None:
    """Bandwidth is size by time, but for rounding and for collectives that count the ranks in."""
    if time_us <= 0:
        raise line.error("a time that is not above 0")
    expected = size / time_us / 1000
    if abs(algbw - expected) > 0.011 + 0.02 * expected:
        raise line.error(f"{size} bytes in {time_us:g} us are {expected:.2f} GB/s, not {algbw:g}")
    if busbw > 2 * algbw + 0.02:
        raise line.error(f"a bus bandwidth of {busbw:g} GB/s cannot come from {algbw:g}")


def _check(run: _Run, line: Line) -> None:
    """The mean of all rows. Raises FormatError."""
    if not run.rows or run.average is None:
        raise line.error("an average without a row above it")
    _check_sizes(run, line)
    mean = sum(row.busbw_gigabytes_per_s for row in run.rows) / len(run.rows)
    if abs(mean - run.average) > 0.01 + 0.002 * run.average:
        raise line.error(
            f"the average is {run.average:g} GB/s, but that of the rows above is {mean:.4g}: a row is missing"
        )


_SMALL = 1 << 16
"""Below it sizes are rounded to whole elements per rank, to nothing at the least."""


def _check_sizes(run: _Run, line: Line) -> None:
    """Sizes go from the least to the most by the step. Raises FormatError where one is missing."""
    for size, following in zip(run.sizes, [*run.sizes[1:], run.most], strict=True):
        last = following == run.most and size == run.sizes[-1]
        expected = size * run.step if run.is_factor else size + run.step
        if size > following or (size == following and not last and size >= _SMALL):
            raise line.error(f"{following} bytes do not follow {size} bytes")
        if size >= _SMALL and (following > expected * 1.3 or (last and following >= expected)):
            raise line.error(f"a row is missing behind that of {size} bytes")
    if run.sizes[0] > max(run.least, _SMALL) * 1.3:
        raise line.error(f"the rows begin with {run.sizes[0]} bytes, not with {run.least}")


def _number(word: Word) -> float:
    try:
        result = float(word.text)
    except ValueError:
        result = math.nan
    if not math.isfinite(result) or result < 0 or "_" in word.text:
        raise word.error(f"{word.text[:40]!r} is no figure")
    return result


def _whole(word: Word) -> int:
    if not word.text.isascii() or not word.text.isdigit() or len(word.text) > 15:
        raise word.error(f"{word.text[:40]!r} is no whole number")
    return int(word.text)


PARSER = TextParser((TOOL,), recognises, parse)
