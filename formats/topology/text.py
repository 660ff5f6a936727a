"""The text of a tool's output without its decoration, and the error that says where it is wrong.

Decoration is what terminals, loggers and people put around an output and what says nothing about the machine: colours,
CRLF, time stamps and pod names before each line, a common label of ``srun`` or ``mpirun``, a quotation mark.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

LONGEST_TEXT = 64 << 20
"""Characters of one output that are read."""
MOST_LINES = 1_000_000
LONGEST_LINE = 16 << 10
"""Characters of a line; JSON and XML may have longer ones."""

_COLOUR = re.compile(
    r"(?:\x1b|\^\[|\u241b)\[[0-9;]{0,16}m|\[[0-9;]{1,16}m(?!s?\])"
    r"|\x1b\[[0-9;?]*[A-Za-ln-z]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[()][A-Z0-9]"
)
"""Escape sequences, also those of which copying took the escape character."""
_UNDERLINE = re.compile(r"\[(?:[0-9;]*;)?0?4m")
_STAMP = r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z| ?[+-]\d\d:?\d\d)?"
_PREFIX = re.compile(
    r"(?:"
    r"\[(?:pod|container)/[^\]\s]{1,300}\]"
    rf"|{_STAMP}(?: (?:stdout|stderr) [FP])?"
    rf"|\[{_STAMP}\]"
    r"|[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d [\w.-]{1,255} [^\s:\[\]]{1,100}(?:\[\d+\])?:"
    r")(?: |(?=\t)|$)| *\[\d+,\d+\]<std(?:out|err)>: ?"
)
"""What log collectors put before a line, with the one blank that they add."""
_MOST_PREFIXES = 4
_COMMON = (re.compile(r"[\w.-]{1,100}:(?: |$)"), re.compile(r"> ?"), re.compile(r"[\w.-]{1,100} +\| ?"))
"""Labels that are only taken off when every line has the same one."""


class FormatError(ValueError):
    """Output that cannot be read; ``line`` and ``column`` count from 1 and are 0 where no single place is to blame."""

    def __init__(self, message: str, line: int = 0, column: int = 0) -> None:
        where = f"line {line}, column {column}: " if column else f"line {line}: " if line else ""
        super().__init__(where + message)
        self.line, self.column = line, column


@dataclass(frozen=True)
class Word:
    """Text between blanks and where it begins."""

    text: str
    line: int
    column: int

    def error(self, message: str) -> FormatError:
        return FormatError(message, self.line, self.column)


@dataclass(frozen=True)
class Line:
    """One line without decoration. ``shift`` characters of decoration stood before it; ``ended``: by a line break."""

    number: int
    text: str
    shift: int = 0
    ended: bool = True
    underlined: bool = False

    def tokens(self, pattern: "re.Pattern[str]" = re.compile(r"\S+")) -> tuple[Word, ...]:
        return tuple([self.word(match.start(), match[0]) for match in pattern.finditer(self.text)])

    def word(self, start: int, text: str) -> Word:
        return Word(text, self.number, self.shift + start + 1)

    def error(self, message: str, start: int = -1) -> FormatError:
        return FormatError(message, self.number, self.shift + start + 1 if start >= 0 else 0)

    def __bool__(self) -> bool:
        return bool(self.text.strip())


@dataclass(frozen=True)
class Source:
    """A whole output."""

    lines: tuple[Line, ...]
    text: str = field(repr=False)
    """The lines joined again, for what is not made of lines: JSON, XML."""

    def matching(self, pattern: "re.Pattern[str]") -> Iterator[tuple[Line, "re.Match[str]"]]:
        for line in self.lines:
            if match := pattern.match(line.text):
                yield line, match

    def has(self, pattern: "re.Pattern[str]") -> bool:
        return any(True for _ in self.matching(pattern))

    def line_at(self, offset: int) -> int:
        """Number of the line in which a character of ``text`` lies."""
        return self.text.count("\n", 0, max(0, offset)) + 1


def source_of(text: str) -> Source:
    """Raises FormatError for nothing, for too much and for what is no text."""
    if len(text) > LONGEST_TEXT:
        raise FormatError(f"{len(text) >> 20} MiB of text; an output has at most {LONGEST_TEXT >> 20}")
    if "\x00" in text:
        raise FormatError("this is no text: it has zero bytes", text.count("\n", 0, text.index("\x00")) + 1)
    text = text.removeprefix("\ufeff")
    if not text.strip():
        raise FormatError("there is nothing in it; did the tool run?")
    if text.count("\n") > MOST_LINES:
        raise FormatError(f"more than {MOST_LINES} lines; give the output of one tool")
    raw = re.sub("\r*\n|\r", "\n", text).split("\n")
    ended = raw[-1] == ""
    raw = raw[:-1] if ended else raw
    lines = [_line(number, name, ended or number < len(raw)) for number, name in enumerate(raw, 1)]
    if not any(lines):
        raise FormatError("there is nothing in it but decoration; did the tool run?")
    lines = _without_labels(lines)
    return Source(tuple(lines), "\n".join(line.text for line in lines))


def short_lines(source: Source) -> None:
    """Raises FormatError for a line that no tool prints as text."""
    for line in source.lines:
        if len(line.text) > LONGEST_LINE:
            raise line.error(
                f"a line of {len(line.text)} characters: this is not the output of a tool that is known here"
            )


def unbroken(line: Line, what: str) -> None:
    """Raises FormatError when the text ends within ``line``: the last word of a cut file reads as a shorter one."""
    if not line.ended:
        raise line.error(f"{what} has no line break at its end: it may be cut")


def _line(number: int, raw: str, ended: bool) -> Line:
    underlined = bool("m" in raw and _UNDERLINE.search(raw))
    text = _COLOUR.sub("", raw) if "[" in raw or "\x1b" in raw else raw
    text = text.replace("\u00a0", " ")
    start = 0
    for _ in range(_MOST_PREFIXES):
        match = _PREFIX.match(text, start)
        if match is None:
            break
        start = match.end()
    return Line(number, text[start:].rstrip(), start, ended, underlined)


def _without_labels(lines: list[Line]) -> list[Line]:
    filled = [line for line in lines if line]
    for label in _COMMON:
        first = label.match(filled[0].text)
        text = first[0].rstrip() if first else ""
        # A single line with a word and a colon is a message, unless a document follows.
        is_message = label is _COMMON[0] and not text[:-1].isdigit()
        alone = len(filled) == 1 and is_message and filled[0].text[len(text) :].lstrip()[:1] not in ("{", "[")
        if text and not alone and all(line.text.startswith(text) for line in filled):
            lines = [_cut(line, match.end() if (match := label.match(line.text)) else 0) for line in lines]
            break
    # An output that somebody moved to the right, as documents do.
    indents = {line.text[: len(line.text) - len(line.text.lstrip(" "))] for line in lines if line}
    shortest = min(indents, key=len, default="")
    return [_cut(line, min(len(shortest), len(line.text))) for line in lines] if shortest else lines


def _cut(line: Line, end: int) -> Line:
    return Line(line.number, line.text[end:], line.shift + end, line.ended, line.underlined)
