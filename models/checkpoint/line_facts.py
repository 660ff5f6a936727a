"""What else a message tells: at which step the job is, and whether a write goes on beside the training.

What a line *means* is learned (``lines``); numbers and names are read.
"""

import re
from array import array
from collections.abc import Sequence
from functools import lru_cache
from itertools import chain

from kopt.models.checkpoint.shapes import shape_of, text_of

_NAMED = re.compile(
    r"(?<![a-zA-Z])(?:global[_ ]?steps?|num_updates|updates?|iterations?|iters?|steps?|timesteps?|итерация|шаг\w*"
    r"|Schritt|étape|paso|passo|ステップ|스텝|步数|步|it)[\"'*]*\s?[=:#@_\-]?\s{0,6}[\"']?\[?(\d+)(?!\d*\s?%)",
    re.IGNORECASE,
)
_BEFORE = re.compile(r"(\d+)(?:\]|\s)?\s?(?:updates|steps|iterations|iters|步)\b")
_OF = re.compile(r"(?<![\d.:/])(\d+)\s?/\s?(\d+)(?![\d/]|\.\d)")
_IN_NAME = re.compile(r"(?<![a-zA-Z])(?:step|iter|batch|ba)[-_.=]?0*(\d+)(?!\d*[a-zA-Z])")
_BEHIND = r"[-_.=/]?(?:step|iter|epoch|ckpt)?[-_.=]?0*(\d+)(?!\d*[a-zA-Z])(?![\d.]*\s?(?:[GMK]i?B|s\b|%))"
_SAVED = re.compile(rf"(?:checkpoints? ?|ckpt ?|chkpt|snapshot ?|epoch|iter|step|updates?){_BEHIND}", re.IGNORECASE)
_FILE = re.compile(rf"(?:model|state|weights|(?<![a-zA-Z\d])(?:ep|w)){_BEHIND}", re.IGNORECASE)
_PATH = re.compile(r"(?:/[^\s/]+){2,}")
_FOR = re.compile(r"\b(?:for|at|of|@)\s(?:step|iteration|epoch|update)?\s?0*(\d+)\b")
_EPOCH = re.compile(r"(?:epoch|ep|эпоха|Epoche|époque|época|エポック|에폭|第)[\s:=_#\[\]]{0,4}0*(\d+)", re.IGNORECASE)
_ASIDE = re.compile(
    r"async|background|staging|staged|hintergrund|arrière-plan|segundo plano|фонов|后台|异步|バックグラウンド"
    r"|백그라운드",
    re.IGNORECASE,
)
_SYNC = re.compile(r"\[sync\]|synchronous(?:ly)?\b(?<!asynchronous)|blocking save", re.IGNORECASE)
_BATCH = re.compile(r"(?<![a-zA-Z])(?:mini-?)?batch(?:es)?[\"']?\s?[=:#]?\s{0,3}[\"']?\[?(\d+)(?![.\d])", re.IGNORECASE)
_LOOKED_AT, _MOST_COUNTED = 600, 16


def step_of_progress(text: str) -> int | None:
    """Where training is: a step by name, else how much of a bar is done, else the epoch."""
    text = text[:_LOOKED_AT]
    named, fractions, epoch = _places(shape_of(text))
    if named:
        return _number(text[named])
    place = iter(fractions)
    for start, end, whole, last in zip(place, place, place, place, strict=True):
        if _number(text[whole:last]) >= _number(text[start:end]):
            return _number(text[start:end])
    return _number(text[epoch].lstrip("0")) if epoch else None


def counts_of(text: str) -> frozenset[int]:
    """All that a message counts: steps, batches, epochs, and how much of a bar is done."""
    text = text[:_LOOKED_AT]
    return frozenset(_number(text[place]) for place in _counted(shape_of(text)))


@lru_cache(maxsize=8192)
def _counted(shape: bytes) -> tuple[slice, ...]:
    text = text_of(shape)
    found = [one.span(1) for which in (_NAMED, _BATCH, _EPOCH) for one in which.finditer(text)]
    found += [one.span(1) for one in _OF.finditer(text)]
    return tuple(slice(*one) for one in found[:_MOST_COUNTED])


def epoch_of(text: str) -> int | None:
    """Which epoch a message speaks of."""
    text = text[:_LOOKED_AT]
    epoch = _places(shape_of(text))[2]
    return _number(text[epoch].lstrip("0")) if epoch else None


def _number(digits: str) -> int:
    return int(digits[:18] or 0)


@lru_cache(maxsize=8192)
def _places(shape: bytes) -> tuple[slice | None, Sequence[int], slice | None]:
    """Where texts of the shape have the number of a named step, else those of fractions; and an epoch's, zeros and all.

    Of each fraction both spans follow each other, packed: a hostile log has many, and much is kept.
    """
    text = text_of(shape)
    named, epoch = _NAMED.search(text) or _BEFORE.search(text), _EPOCH.search(text)
    found = () if named else _OF.finditer(text)
    fractions = array("H", chain.from_iterable((*one.span(1), *one.span(2)) for one in found))
    return named and slice(*named.span(1)), fractions, epoch and slice(*epoch.span(1))


def step_of_checkpoint(text: str) -> int | None:
    """Which step a message about a checkpoint speaks of: by name, in the file's name, or "for 100"; None otherwise."""
    text = text[-_LOOKED_AT:]
    place, padded = _saved_place(shape_of(text))
    if place is None:
        return None
    return _number(text[place].lstrip("0") if padded else text[place])


@lru_cache(maxsize=8192)
def _saved_place(shape: bytes) -> tuple[slice | None, bool]:
    """Where texts of the shape have the number of a checkpoint's step, and whether zeros in front are none of it."""
    text = _PATH.sub(_from_checkpoint, text_of(shape))
    named = _NAMED.search(text) or _BEFORE.search(text)
    found = named or _IN_NAME.search(text) or _SAVED.search(text) or _FILE.search(text)
    found = found or _FOR.search(text) or _EPOCH.search(text)
    return found and slice(*found.span(1)), not named


def _from_checkpoint(path: re.Match[str]) -> str:
    """The path with blanks in place of the folders that its checkpoint lies in: these have numbers of their own."""
    parts = path[0].split("/")
    last = max((n for n, part in enumerate(parts) if _SAVED.search(part)), default=0)
    before = "/".join(parts[:last])
    return " " * len(before) + path[0][len(before) :]


def goes_on_aside(text: str) -> bool:
    """Whether the message says that a write goes on while training does."""
    return _ASIDE.search(text) is not None and _SYNC.search(text) is None
