"""One line's shares of the labels → the label to act on, by the job's own statistics and repetitions.

A beginning needs less evidence than an end: holding a job costs less than a torn checkpoint.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from kopt.core.workload.checkpoint import LineLabel
from kopt.models.checkpoint.classified_line import LABELS, ClassifiedLine
from kopt.models.checkpoint.line_facts import epoch_of
from kopt.models.checkpoint.templates import Hint, LineTemplate, hint
from kopt.models.checkpoint.write_statistics import WriteStatistics
from kopt.models.checkpoint.writes import OpenWrite

_AT = {label: number for number, label in enumerate(LABELS)}
_BEGIN, _PROGRESS, _END = _AT[LineLabel.CKPT_BEGIN], _AT[LineLabel.CKPT_PROGRESS], _AT[LineLabel.CKPT_END]
_STEP, _EVAL, _OVER = _AT[LineLabel.TRAIN_STEP], _AT[LineLabel.EVAL], _AT[LineLabel.END]
_LOAD = _AT[LineLabel.CKPT_LOAD]
_WRITES = (_BEGIN, _PROGRESS, _END)
_RESTS = tuple(number for number in range(len(LABELS)) if number not in _WRITES)
_OPENS, _COUNTS = 0.6, 0.5
_END_IN_WRITE, _END_ASYNC, _END_ALONE, _END_UNTRAINED = 0.45, 0.7, 0.6, 0.85
CERTAIN = 0.75
"""Of a write that only other activity ended: below, it may have been no checkpoint at all."""
ACTIVITY = frozenset({LineLabel.TRAIN_STEP, LineLabel.EVAL, LineLabel.END})
ABOUT_WRITES = frozenset({LineLabel.CKPT_BEGIN, LineLabel.CKPT_PROGRESS, LineLabel.CKPT_END})
_NUMBER = re.compile(r"\d")
_WORD = re.compile(r"[^\W\d_]+")


@dataclass(slots=True)
class Reading:
    """``premature_end``: the words are those of an end, but this job logs them before its writes have ended."""

    label: LineLabel
    confidence: float
    premature_end: bool = False


def read(
    line: ClassifiedLine, template: LineTemplate, write: OpenWrite | None, statistics: WriteStatistics, *, trained: bool
) -> Reading:
    """``write``: the write that the line's writer has open; ``trained``: there were lines about steps."""
    if not line.text or line.text.isspace():
        return Reading(LineLabel.OTHER, 1.0)
    shares = line.shares
    if write is not None and template.only_in_writes and _goes_on_with(line, write):
        # A bar of its own: it counts what is written, as a step's counts what was trained.
        return Reading(LineLabel.CKPT_PROGRESS, max(_COUNTS, write_share(line)))
    repeated = hint(template, shares[_BEGIN], shares[_PROGRESS], write_share(line), opened=write is not None)
    if repeated is Hint.END:
        return Reading(LineLabel.CKPT_END, max(shares[_END], _END_ALONE))
    best = _best(line, write, trained=trained)
    if repeated is Hint.BEGIN and write_share(line) < _COUNTS and not speaks_of_step(line):
        return Reading(LABELS[_PROGRESS if write else _BEGIN], _COUNTS)
    if repeated is Hint.STEP and shares[best] < _OPENS:
        return Reading(LineLabel.TRAIN_STEP, max(shares[_STEP], _OPENS))
    if repeated is Hint.BEGIN and best == _END:
        return Reading(LABELS[_PROGRESS if write else _BEGIN], write_share(line), premature_end=True)
    if best == _END and shares[_END] < _needed_to_end(write, statistics, trained=trained):
        best = _PROGRESS if write else _best_of(shares, (_BEGIN, _PROGRESS, *_RESTS))
    if write is not None and best == _LOAD:
        # Nobody reads a checkpoint while the next one is being written: the line is about that one.
        return Reading(LineLabel.CKPT_PROGRESS, shares[best])
    if write is not None and LABELS[best] in ACTIVITY and not _continues(line, best):
        best = _AT[LineLabel.OTHER]
    return Reading(LABELS[best], shares[best])


def _continues(line: ClassifiedLine, best: int) -> bool:
    """Whether a line shows that the job continues after a write: it has a number, or is clearly about training."""
    active = line.shares[_STEP] + line.shares[_EVAL] + line.shares[_OVER]
    if _NUMBER.search(line.text):
        return active >= _COUNTS
    return best != _EVAL and active >= CERTAIN


def _goes_on_with(line: ClassifiedLine, write: OpenWrite) -> bool:
    """Whether a line that counts something begins with the word that the write began with, in whatever language.

    Both may name an epoch first, and the line then is one of the next.
    """
    if epoch_of(line.text) is not None:
        return False
    words = [_WORD.search(text) for text in (line.text, write.text)]
    number = line.shares[_STEP] >= _COUNTS
    return number and all(words) and len({word[0].casefold() for word in words if word}) == 1


def write_share(line: ClassifiedLine) -> float:
    """The probability that the line is about a write."""
    return line.shares[_BEGIN] + line.shares[_PROGRESS] + line.shares[_END]


def speaks_of_step(line: ClassifiedLine) -> bool:
    """Whether the line is certainly about a step."""
    return line.shares[_STEP] >= _OPENS


def _best(line: ClassifiedLine, write: OpenWrite | None, *, trained: bool) -> int:
    """The most likely label of a line that is certain enough to be about a write, or not to be about one."""
    shares, about_write = line.shares, write_share(line)
    best = shares.index(max(shares))
    needed = _needed(write, trained=trained)
    if best in _WRITES and about_write < needed:
        return _best_of(shares, _RESTS)
    if best not in _WRITES and about_write >= max(0.5, needed):
        return _best_of(shares, _WRITES)
    return best


def _needed(write: OpenWrite | None, *, trained: bool) -> float:
    """How certain it must be that a line is about a write."""
    if write is None:
        return _OPENS if trained else CERTAIN
    return 0.5 if write.ending is None else CERTAIN


def _needed_to_end(write: OpenWrite | None, statistics: WriteStatistics, *, trained: bool) -> float:
    """How certain it must be that a line is a write's end."""
    if write is None:
        return _END_ALONE if trained else _END_UNTRAINED
    # During training many other lines come between a beginning and its end.
    return _END_ASYNC if write.asynchronous or statistics.asynchronous else _END_IN_WRITE


def _best_of(shares: Sequence[float], among: tuple[int, ...]) -> int:
    return max(among, key=shares.__getitem__)
