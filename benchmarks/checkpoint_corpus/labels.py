"""What the lines of each program say: the ordered patterns of ``labels.toml``, applied to what was recorded.

What says a line of ``styled_loop.py`` follows from the words it was given (``programs/styles.toml``).
"""

import re
import tomllib
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

from kopt.core.workload.checkpoint import LineLabel
from kopt.formats.joblog import LineSplitter

HERE = Path(__file__).resolve().parent
LABELS, STYLES = HERE / "labels.toml", HERE / "programs" / "styles.toml"
# A style's words by what they say. Steps stand last: some are so short that they are found in anything.
_SAYS = {
    "end": LineLabel.CKPT_END,
    "begin": LineLabel.CKPT_BEGIN,
    "best": LineLabel.CKPT_BEGIN,
    "progress": LineLabel.CKPT_PROGRESS,
    "load": LineLabel.CKPT_LOAD,
    "failed": LineLabel.ERROR,
    "deleted": LineLabel.OTHER,
    "notbest": LineLabel.OTHER,
    "misc": LineLabel.OTHER,
    "eval": LineLabel.EVAL,
    "finish": LineLabel.END,
    "data": LineLabel.DATA,
    "startup": LineLabel.STARTUP,
    "train": LineLabel.TRAIN_STEP,
}
_FIELD = re.compile(r"\{\w+(?::[^}]*)?\}")
Rules = tuple[tuple[re.Pattern[str], LineLabel], ...]


@cache
def _all_rules() -> dict[str, Rules]:
    found = tomllib.loads(LABELS.read_text())
    return {
        program: tuple((re.compile(pattern), LineLabel(label)) for pattern, label in each["rules"])
        for program, each in found.items()
    }


@cache
def rules_of(program: str) -> Rules:
    """Those of a program or of ``style:x``, before those of every program. Raises KeyError where there are none."""
    known = _all_rules()
    style = program.removeprefix("style:")
    return (known[program] if style == program else tuple(_rules_of_style(style))) + known["everything"]


def _rules_of_style(style: str) -> Iterator[tuple[re.Pattern[str], LineLabel]]:
    words = tomllib.loads(STYLES.read_text())[style]
    for key, label in _SAYS.items():
        found = words.get(key, [])
        for template in [found] if isinstance(found, str) else found:
            yield _pattern(template.partition(" | ")[0] if words["logger"] == "structlog" else template), label
    if words["logger"] == "tqdm":
        yield re.compile(r"^train: +\d+%\|"), LineLabel.TRAIN_STEP


def _pattern(template: str) -> re.Pattern[str]:
    """Finds what a template was filled in to; a bar or another rank's line may stand around it."""
    pieces = [piece.replace("{{", "{").replace("}}", "}") for piece in _FIELD.split(template)]
    # Without words of its own it can only be known as a whole.
    bare = not any(re.search(r"\w\w", piece) for piece in pieces)
    text = (r"\S+?" if bare else ".*?").join(re.escape(piece) for piece in pieces)
    return re.compile(f"^{text}$" if bare else text)


def label_of(text: str, rules: Rules) -> LineLabel | None:
    """What a line says; None for one that is empty or that no pattern is found in."""
    return next((label for pattern, label in rules if pattern.search(text)), None) if text.strip() else None


def labels_of(texts: Iterable[str], program: str) -> dict[int, str]:
    """By line number, from 1: the lines that have a label. The code that a traceback shows belongs to its error."""
    rules, found, in_traceback = rules_of(program), dict[int, str](), False
    for number, text in enumerate(texts, 1):
        label = label_of(text, rules)
        if label is None and in_traceback and text.startswith(" ") and text.strip():
            label = LineLabel.ERROR
        if label:
            found[number] = label.value
        in_traceback = "Traceback (most recent call last)" in text or (in_traceback and text.startswith(" "))
    return found


def lines_in(log: bytes) -> list[str]:
    """The texts of a log's lines, as they were counted when it was recorded."""
    splitter = LineSplitter()
    return [line.text for line in [*splitter.feed(log), *splitter.close()]]
