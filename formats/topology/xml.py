"""XML with the place of every element. Declarations of document types and entities are refused: no tool of ours prints
them, and entities that expand each other fill any memory.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from xml.parsers import expat

from kopt.formats.topology.text import FormatError, Source

DEEPEST = 100
MOST_ELEMENTS = 500_000
_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)


@dataclass(frozen=True)
class Element:
    """One element. Text between elements says nothing in the formats that are read here."""

    tag: str
    attributes: dict[str, str]
    line: int
    column: int
    children: "list[Element]" = field(default_factory=list)

    def error(self, message: str) -> FormatError:
        return FormatError(f"<{self.tag}> {message}", self.line, self.column)

    def whole(self, name: str, least: int = 0, most: int = 1 << 31) -> int | None:
        """A number, None where the attribute is missing. Raises FormatError."""
        text = self.attributes.get(name)
        if text is None:
            return None
        if not re.fullmatch(r"-?\d{1,12}", text, re.ASCII) or not least <= int(text) <= most:
            raise self.error(f"{name}={text[:60]!r} is no number from {least} to {most}")
        return int(text)

    def walk(self) -> "Iterator[Element]":
        """The element and all below it."""
        pending = [self]
        while pending:
            element = pending.pop()
            yield element
            pending += reversed(element.children)


def begins(source: Source, tag: str) -> bool:
    return f"<{tag}" in source.text and bool(re.search(rf"<{tag}[\s>/]", source.text))


def read(source: Source, tag: str) -> Element:
    """The document whose root is ``tag``; text before and behind it is left out. Raises FormatError.

    Comments are taken out before: NCCL's own reader passes over any, RCCL's files have some that are no XML.
    """
    text = _COMMENT.sub(_blank, source.text)
    odd = re.search(r"<!--|<!DOCTYPE|<!ENTITY", text)
    if odd:
        what = "a comment does not end" if odd[0] == "<!--" else "a declaration of a document type is not accepted"
        raise FormatError(what, text.count("\n", 0, odd.start()) + 1)
    roots = list(re.finditer(rf"<{tag}[\s/>]", text))
    end = text.rfind(f"</{tag}>")
    if end < 0 or not roots:
        raise FormatError(f"there is no </{tag}>: the output is cut", text.count("\n") + 1)
    if len(roots) > 1:
        raise FormatError(f"<{tag}> begins twice; give one output", text.count("\n", 0, roots[1].start()) + 1)
    start = roots[0].start()
    line = text.count("\n", 0, start)
    shift = start - (text.rfind("\n", 0, start) + 1)
    return _parsed(text[start : end + len(tag) + 3], tag, line, shift)


def _blank(comment: "re.Match[str]") -> str:
    """As many lines and columns as it had."""
    return re.sub(r"[^\n]", " ", comment[0])


def _parsed(text: str, tag: str, line: int, shift: int) -> Element:
    parser = expat.ParserCreate()
    top = Element("", {}, 0, 0)
    open_: list[Element] = [top]
    count = 0

    def position() -> tuple[int, int]:
        row, column = parser.CurrentLineNumber, parser.CurrentColumnNumber
        return line + row, column + 1 + (shift if row == 1 else 0)

    def begin(name: str, attributes: dict[str, str]) -> None:
        nonlocal count
        count += 1
        if len(open_) > DEEPEST or count > MOST_ELEMENTS:
            raise FormatError("nested too deeply or with too many elements", *position())
        open_.append(Element(name, attributes, *position()))
        open_[-2].children.append(open_[-1])

    def refuse(*_: object) -> None:
        raise FormatError("a declaration of a document type or an entity is not accepted", *position())

    parser.StartElementHandler = begin
    parser.EndElementHandler = lambda _: open_.pop()
    parser.StartDoctypeDeclHandler = parser.EntityDeclHandler = refuse
    try:
        parser.Parse(text, True)
    except expat.ExpatError as error:
        row = error.lineno
        message = expat.ErrorString(error.code)
        raise FormatError(f"not XML ({message})", line + row, error.offset + 1 + (shift if row == 1 else 0)) from error
    if len(top.children) != 1 or top.children[0].tag != tag:
        raise FormatError(f"the document is no <{tag}>", line + 1)
    return top.children[0]
