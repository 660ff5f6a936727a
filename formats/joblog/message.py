"""A line's text → what the program said, when, and which of a job's processes said it."""

import json
import re
from dataclasses import dataclass, replace
from typing import Any

from kopt.formats.joblog.stamps import Stamp, find_stamp

# Colours and cursor movements; log viewers and copies often swallow the escape character in front.
_ANSI = re.compile(r"\x1b(?:\][^\x07\x1b]*(?:\x07|\x1b\\)?|\[[0-9;?]*[ -/]*[@-~]|[@-Z\\-_])?")
_COLOUR = re.compile(r"\[\d{1,3}(?:;\d{1,3})*m")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]+")
_CRI = re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+(?:Z|[+-]\d\d:\d\d) (?:stdout|stderr) [FP](?::\S+)? ?")
# In front of what a process says: kubectl's, mpirun's, srun's, torchrun's, Ray's and the frameworks' own marks of it.
_WRITERS = tuple(
    re.compile(pattern)
    for pattern in (
        r"\[pod/(?P<writer>[\w.-]+)/[\w.-]+\] ?",
        r"\[(?P<writer>\d+,\d+)\]<std(?:out|err)>:? ?",
        r"\((?P<writer>[\w.]+ pid=\d+(?:, ip=[\d.:a-f]+)?)\) ?",
        r"\[(?P<writer>(?:rank|default|worker|node) ?\d+)\]:? ?",
        r"(?P<writer>(?:rank|worker|node|vm)[-_ ]?\d+(?:-\d+)*) ?[:|] ",
        r"(?P<writer>\d{1,5}): (?=\S)",
    )
)
_OPENINGS = frozenset("[(rwnv0123456789")
# In brackets only: a LoRA has a rank, too.
_RANK = re.compile(r"\[(?:[\w ]*rank|[\w ]*Rank|RANK|process(?:_index)?)[:= ]{0,2}(\d{1,5})\]")
_LONGEST_JSON = 65_536
_TEXT_KEYS = ("message", "msg", "event", "log", "text", "body")
_TIME_KEYS = ("timestamp", "time", "ts", "@timestamp", "asctime", "datetime", "date")
_RANK_KEYS = ("rank", "global_rank", "process_index", "worker", "process")


@dataclass(frozen=True, slots=True)
class Message:
    """``text``: what was said, its own time left in; ``writer``: which process said it, "" if it does not say."""

    text: str
    stamp: Stamp | None = None
    writer: str = ""


def read_message(text: str) -> Message:
    """Takes off what stands around a message: colours, container runtime, JSON, and the launcher's mark of the process.

    >>> read_message('2024-05-01T10:00:00.5Z stdout F {"level": "info", "rank": 3, "msg": "saved step 10"}').text
    'saved step 10'
    """
    text = _plain(text)
    around = _CRI.match(text) if text[:1].isdigit() else None
    outer = find_stamp(text[: around.end()]) if around else None
    message = _inside(text[around.end() :] if around else text)
    return message if message.stamp or not outer else replace(message, stamp=outer)


def _plain(text: str) -> str:
    if "\x1b" in text:
        text = _ANSI.sub("", text)
    if "[" in text:
        text = _COLOUR.sub("", text)
    return text if text.isprintable() else _CONTROL.sub("", text)


def _inside(text: str) -> Message:
    if text.startswith("{") and text.rstrip().endswith("}"):
        message = _from_json(text)
        if message:
            return message
    writer, text = _writer(text)
    return Message(text, find_stamp(text), writer or _rank(text))


def _writer(text: str) -> tuple[str, str]:
    """The mark in front of a line, and what follows; several may stand in a row."""
    if text[:1] not in _OPENINGS:
        return "", text
    names = []
    for pattern in _WRITERS:
        match = pattern.match(text)
        if match:
            names.append(match["writer"])
            text = text[match.end() :]
    return "/".join(names), text


def _rank(text: str) -> str:
    # Most lines name none, and a word is found much quicker than a pattern.
    match = _RANK.search(text, 0, 200) if "ank" in text or "rocess" in text or "ANK" in text else None
    return f"rank{match[1]}" if match else ""


def _from_json(text: str) -> Message | None:
    """A structured log's line; None for anything else between braces, such as a dictionary of metrics."""
    try:
        result = json.loads(text) if len(text) <= _LONGEST_JSON else None
    except (ValueError, RecursionError):
        return None
    if not isinstance(result, dict):
        return None
    text = _first(result, _TEXT_KEYS)
    if not isinstance(text, str):
        return None
    inner = _inside(text.rstrip("\n")) if not text.startswith("{") else Message(text)
    time, rank = _first(result, _TIME_KEYS), _first(result, _RANK_KEYS)
    stamp = find_stamp(str(time)) if isinstance(time, str | float | int) else None
    return Message(inner.text, stamp or inner.stamp, inner.writer or (f"rank{rank}" if isinstance(rank, int) else ""))


def _first(result: dict[str, Any], keys: tuple[str, ...]) -> Any:
    return next((result[key] for key in keys if key in result), None)
