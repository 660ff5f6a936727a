"""Facts in a message: at which step the job is, and whether a write is asynchronous.

What a line *means* is learned (``lines``); numbers and names are read.
"""

import re
from array import array
from collections.abc import Sequence
from functools import lru_cache
from itertools import chain

from kopt.models.checkpoint.classifier.text_shape import shape_of, text_of

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
_FOLDER_OF = re.compile(r"(?<=[^\s/\\])[/\\](?=(?:checkpoint|ckpt)[-_.]?\d)", re.IGNORECASE)
_FOR = re.compile(r"\b(?:for|at|of|@)\s(?:step|iteration|epoch|update)?\s?0*(\d+)\b")
_EPOCH = re.compile(r"(?:epoch|ep|эпоха|Epoche|époque|época|エポック|에폭|第)[\s:=_#\[\]]{0,4}0*(\d+)", re.IGNORECASE)
_ASIDE = re.compile(
    r"async|background|staging|staged|hintergrund|arrière-plan|segundo plano|фонов|后台|异步|バックグラウンド"
    r"|백그라운드",
    re.IGNORECASE,
)
_SYNC = re.compile(r"\[sync\]|(?<!a)synchronous(?:ly)?\b|blocking save", re.IGNORECASE)
_BATCH = re.compile(r"(?<![a-zA-Z])(?:mini-?)?batch(?:es)?[\"']?\s?[=:#]?\s{0,3}[\"']?\[?(\d+)(?![.\d])", re.IGNORECASE)
_EPOCH_BAR = re.compile(r"\s*Epoch[ :]+(\d{1,9})(?:/-?\d+)?:?\s[\W_]*(?:\d+%\|[^|]*\|)?\s*(\d{1,9})/(\d{1,9})(?![\d/])")
_METRIC = re.compile(r"(?<![\d.])\d{1,12}\.\d{1,12}(?:e[+-]?\d{1,3})?(?![\d.]|\s?(?:it|s|ms|min|h|sec|ba|step)\b|\s?%)")
_LOOKED_AT, _MOST_COUNTED = 600, 16


def step_of_progress(text: str) -> int | None:
    """Where training is: a step by name, else how much of a bar is done, else the epoch."""
    text = text[:_LOOKED_AT]
    named, fractions, epoch = _step_spans(shape_of(text))
    if named:
        return _number(text[named])
    bounds = iter(fractions)
    for start, end, whole, last in zip(bounds, bounds, bounds, bounds, strict=True):
        if _number(text[whole:last]) >= _number(text[start:end]):
            return _number(text[start:end])
    return _number(text[epoch].lstrip("0")) if epoch else None


def epoch_bar_of(text: str) -> tuple[int, int, int] | None:
    """Epoch, batch and batches of an epoch, of a bar that begins anew with every epoch, as Lightning's does.

    >>> epoch_bar_of("Epoch 3:  45%|####5     | 45/100 [00:01<00:01, 40.1it/s, v_num=0]")
    (3, 45, 100)
    """
    match = _EPOCH_BAR.match(text[:_LOOKED_AT]) if "Epoch" in text[:12] else None
    if match is None:
        return None
    epoch, batch, batches = (int(number) for number in match.groups())
    return (epoch, batch, batches) if batches > 0 and batch <= batches else None


def counts_of(text: str) -> frozenset[int]:
    """All that a message counts: steps, batches, epochs, and how much of a bar is done."""
    text = text[:_LOOKED_AT]
    return frozenset(_number(text[span]) for span in _counted(shape_of(text)))


@lru_cache(maxsize=8192)
def _counted(shape: bytes) -> tuple[slice, ...]:
    text = text_of(shape)
    result = [match.span(1) for which in (_NAMED, _BATCH, _EPOCH) for match in which.finditer(text)]
    result += [match.span(1) for match in _OF.finditer(text)]
    return tuple(slice(*item) for item in result[:_MOST_COUNTED])


def metrics_of(text: str) -> frozenset[str]:
    """The numbers with a fraction that a message names, but for times and speeds."""
    return frozenset(_METRIC.findall(text[:_LOOKED_AT]))


def epoch_of(text: str) -> int | None:
    """The epoch that a message names."""
    text = text[:_LOOKED_AT]
    epoch = _step_spans(shape_of(text))[2]
    return _number(text[epoch].lstrip("0")) if epoch else None


def _number(digits: str) -> int:
    return int(digits[:18] or 0)


@lru_cache(maxsize=8192)
def _step_spans(shape: bytes) -> tuple[slice | None, Sequence[int], slice | None]:
    """Where texts of the shape have the number of a named step, else those of fractions; and an epoch's, zeros and all.

    Of each fraction both spans follow each other, packed: a hostile log has many, and much is kept.
    """
    text = text_of(shape)
    named, epoch = _NAMED.search(text) or _BEFORE.search(text), _EPOCH.search(text)
    result = () if named else _OF.finditer(text)
    fractions = array("H", chain.from_iterable((*match.span(1), *match.span(2)) for match in result))
    return named and slice(*named.span(1)), fractions, epoch and slice(*epoch.span(1))


def step_of_checkpoint(text: str) -> int | None:
    """The step that a message about a checkpoint names: by name, in the file's name, or "for 100"; None otherwise."""
    text = text[-_LOOKED_AT:]
    span, padded = _saved_step_span(shape_of(text))
    if span is None:
        return None
    return _number(text[span].lstrip("0") if padded else text[span])


@lru_cache(maxsize=8192)
def _saved_step_span(shape: bytes) -> tuple[slice | None, bool]:
    """Where texts of the shape have the number of a checkpoint's step, and whether leading zeros are padding."""
    text = _from_folder(_PATH.sub(_from_checkpoint, text_of(shape)))
    named = _NAMED.search(text) or _BEFORE.search(text)
    match = named or _IN_NAME.search(text) or _SAVED.search(text) or _FILE.search(text)
    match = match or _FOR.search(text) or _EPOCH.search(text)
    return match and slice(*match.span(1)), not named


def _from_checkpoint(path: re.Match[str]) -> str:
    """The path with blanks in place of the folders that its checkpoint lies in: their names have numbers, too."""
    parts = path[0].split("/")
    last = max((n for n, part in enumerate(parts) if _SAVED.search(part)), default=0)
    before = "/".join(parts[:last])
    return " " * len(before) + path[0][len(before) :]


def _from_folder(text: str) -> str:
    """The text with blanks in place of the folders before ``checkpoint-N``, of relative paths and of Windows', too."""
    for match in _FOLDER_OF.finditer(text):
        word = text[: match.start()].rsplit(maxsplit=1)[-1]
        text = f"{text[: match.start() - len(word)]}{' ' * len(word)}{text[match.start() :]}"
    return text


def continues_aside(text: str) -> bool:
    """Whether the message says that a write continues during training."""
    return _ASIDE.search(text) is not None and _SYNC.search(text) is None
