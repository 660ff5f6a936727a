"""One line's shares of the labels → the label to act on, with what the job's own habits and repetitions say.

Beginnings are believed sooner than ends: holding costs less than a torn checkpoint.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from kopt.core.checkpoint import LineLabel
from kopt.models.checkpoint.refrains import Hint, Refrain, hint
from kopt.models.checkpoint.writes import LABELS, Habits, OpenWrite, Said

_AT = {label: number for number, label in enumerate(LABELS)}
_BEGIN, _PROGRESS, _END = _AT[LineLabel.CKPT_BEGIN], _AT[LineLabel.CKPT_PROGRESS], _AT[LineLabel.CKPT_END]
_STEP, _EVAL, _OVER = _AT[LineLabel.TRAIN_STEP], _AT[LineLabel.EVAL], _AT[LineLabel.END]
_WRITES = (_BEGIN, _PROGRESS, _END)
_RESTS = tuple(number for number in range(len(LABELS)) if number not in _WRITES)
_OPENS, _COUNTS = 0.6, 0.5
_END_IN_WRITE, _END_ASIDE, _END_ALONE, _END_UNTRAINED = 0.45, 0.7, 0.6, 0.85
CERTAIN = 0.75
"""Of a write that only other activity ended: below, it may have been no checkpoint at all."""
ACTIVITY = frozenset({LineLabel.TRAIN_STEP, LineLabel.EVAL, LineLabel.END})
ABOUT_WRITES = frozenset({LineLabel.CKPT_BEGIN, LineLabel.CKPT_PROGRESS, LineLabel.CKPT_END})
_NUMBER = re.compile(r"\d")


@dataclass(slots=True)
class Reading:
    """``lies``: the words are those of an end, and this job says them before its writes have ended."""

    label: LineLabel
    confidence: float
    lies: bool = False


def read(said: Said, refrain: Refrain, known: OpenWrite | None, habits: Habits, *, trained: bool) -> Reading:
    """``known``: the write that the line's writer has open; ``trained``: lines about steps have been seen."""
    if not said.text or said.text.isspace():
        return Reading(LineLabel.OTHER, 1.0)
    shares = said.shares
    repeated = hint(refrain, shares[_BEGIN], shares[_PROGRESS], write_share(said), opened=known is not None)
    if repeated is Hint.END:
        return Reading(LineLabel.CKPT_END, max(shares[_END], _END_ALONE))
    best = _best(said, known, trained=trained)
    if repeated is Hint.BEGIN and write_share(said) < _COUNTS and not speaks_of_step(said):
        return Reading(LABELS[_PROGRESS if known else _BEGIN], _COUNTS)
    if repeated is Hint.STEP and shares[best] < _OPENS:
        return Reading(LineLabel.TRAIN_STEP, max(shares[_STEP], _OPENS))
    if repeated is Hint.BEGIN and best == _END:
        return Reading(LABELS[_PROGRESS if known else _BEGIN], write_share(said), lies=True)
    if best == _END and shares[_END] < _needed_to_end(known, habits, trained=trained):
        best = _PROGRESS if known else _best_of(shares, (_BEGIN, _PROGRESS, *_RESTS))
    if known is not None and LABELS[best] in ACTIVITY and not _goes_on(said, best):
        best = _AT[LineLabel.OTHER]
    return Reading(LABELS[best], shares[best])


def _goes_on(said: Said, best: int) -> bool:
    """Whether a line shows that the job goes on after a write: it counts something, or says clearly that it trains."""
    active = said.shares[_STEP] + said.shares[_EVAL] + said.shares[_OVER]
    if _NUMBER.search(said.text):
        return active >= _COUNTS
    return best != _EVAL and active >= CERTAIN


def write_share(said: Said) -> float:
    """How certainly the words are about a write."""
    return said.shares[_BEGIN] + said.shares[_PROGRESS] + said.shares[_END]


def speaks_of_step(said: Said) -> bool:
    """Whether the words are about a step, without doubt."""
    return said.shares[_STEP] >= _OPENS


def _best(said: Said, known: OpenWrite | None, *, trained: bool) -> int:
    """The likeliest label where the line is certain enough to be about a write, or not about one."""
    shares, write = said.shares, write_share(said)
    best = shares.index(max(shares))
    needed = _needed(known, trained=trained)
    if best in _WRITES and write < needed:
        return _best_of(shares, _RESTS)
    if best not in _WRITES and write >= max(0.5, needed):
        return _best_of(shares, _WRITES)
    return best


def _needed(known: OpenWrite | None, *, trained: bool) -> float:
    """How certain it must be that a line is about a write."""
    if known is None:
        return _OPENS if trained else CERTAIN
    return 0.5 if known.ending is None else CERTAIN


def _needed_to_end(known: OpenWrite | None, habits: Habits, *, trained: bool) -> float:
    """How certain it must be that a line is a write's end."""
    if known is None:
        return _END_ALONE if trained else _END_UNTRAINED
    # Beside training many things are said between a beginning and its end.
    return _END_ASIDE if known.aside or habits.aside else _END_IN_WRITE


def _best_of(shares: Sequence[float], among: tuple[int, ...]) -> int:
    return max(among, key=shares.__getitem__)
