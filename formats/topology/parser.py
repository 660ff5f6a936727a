"""What the parser of one tool's output says of itself; ``parsers.PARSERS`` lists all of them.

There is one class for each kind of input, so that the type checker compares every function with what it is called with.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from kopt.core.hardware.collectives import CollectiveGraphs, CollectiveLog, PortTests
from kopt.core.hardware.fabric import Fabric
from kopt.core.hardware.node_topology import NodeTopology
from kopt.formats.topology.documents import Document
from kopt.formats.topology.text import Source

Parsed = NodeTopology | Fabric | CollectiveLog | CollectiveGraphs | PortTests
Input = TypeVar("Input")


@dataclass(frozen=True)
class _Parser(Generic[Input]):
    """``tools`` are the commands or files that it reads, as people call them, the main one first.

    ``recognises`` is quick and never raises; ``parse`` raises FormatError.
    """

    tools: tuple[str, ...]
    recognises: Callable[[Input], bool]
    parse: Callable[[Input], Parsed]

    @property
    def tool(self) -> str:
        return self.tools[0]


@dataclass(frozen=True)
class TextParser(_Parser[Source]):
    """Reads lines.

    Where several parsers recognise a text, the first of them reads it and the result warns of the others. It does not
    where the first ``expects_others``, as its tool prints what other parsers recognise too, nor of one that
    ``is_expected``, as lines like its own stand in the output of other tools.
    """

    expects_others: bool = False
    is_expected: bool = False


@dataclass(frozen=True)
class XmlParser(_Parser[Source]):
    """Reads an XML document, whose lines may be of any length."""


@dataclass(frozen=True)
class JsonParser(_Parser[Document]):
    """Reads a JSON document, which is decoded once for all of these."""


@dataclass(frozen=True)
class FolderParser(_Parser[Mapping[str, str]]):
    """Reads the files of a folder by their paths, also where they stand in one JSON object."""


@dataclass(frozen=True)
class YamlParser:
    """Reads a YAML document: ``document`` cuts it out, the caller decodes it, and ``parse`` takes the content."""

    tools: tuple[str, ...]
    recognises: Callable[[Source], bool]
    document: Callable[[Source], str]
    parse: Callable[[Any], Parsed]

    @property
    def tool(self) -> str:
        return self.tools[0]


Parser = TextParser | XmlParser | JsonParser | FolderParser | YamlParser
