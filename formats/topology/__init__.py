"""Outputs of topology tools as core types: one module per tool, selected by what the text looks like.

In: text, or a folder of ``/sys`` as paths and contents. Out: ``NodeTopology`` (the part of a node that the tool
shows), ``Fabric``, ``CollectiveLog``, ``CollectiveGraphs`` or ``PortTests``. Decoration around an output is taken off;
an output that is cut, wrapped or contradicts itself raises ``FormatError`` with its line, and nothing is guessed.
``parsers.PARSERS`` lists the tools.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from kopt.core.hardware.node_topology import NodeTopology, TopologyError
from kopt.formats.topology import documents
from kopt.formats.topology.linux import sysfs
from kopt.formats.topology.merge import merged
from kopt.formats.topology.parser import FolderParser, JsonParser, Parsed, TextParser, XmlParser, YamlParser
from kopt.formats.topology.parsers import PARSERS
from kopt.formats.topology.text import LONGEST_LINE, FormatError, Source, short_lines, source_of

Input = TypeVar("Input")
Result = TypeVar("Result")


def parse(text: str, load_yaml: Callable[[str], Any] | None = None) -> Parsed:
    """The output of one tool. ``load_yaml`` decodes YAML safely, for topograph's models.

    Raises FormatError.
    """
    source = source_of(text)
    if documents.looks_like(source):
        return _checked(_json, source)
    for parser in PARSERS:
        if isinstance(parser, XmlParser) and parser.recognises(source):
            return _checked(parser.parse, source)
    if any(len(line.text) > LONGEST_LINE for line in source.lines) and documents.begins(source):
        return _checked(_json, source)
    short_lines(source)
    matches = [parser for parser in PARSERS if isinstance(parser, TextParser) and parser.recognises(source)]
    if matches:
        return _warned(_checked(matches[0].parse, source), matches)
    for parser in PARSERS:
        if isinstance(parser, YamlParser) and load_yaml is not None and parser.recognises(source):
            return _checked(parser.parse, load_yaml(parser.document(source)))
    if documents.begins(source):
        return _checked(_json, source)
    raise unknown(source)


def parse_tree(tree: Mapping[str, str]) -> NodeTopology:
    """A folder of ``/sys`` by paths. Raises FormatError."""
    return _checked(sysfs.parse, tree)


def unknown(source: Source) -> FormatError:
    """What to say of text that no parser recognises."""
    first = next((line.text.strip() for line in source.lines if line), "")
    tools = dict.fromkeys(tool for parser in PARSERS for tool in parser.tools)
    return FormatError(f"not the output of a tool that is known here: {first[:80]!r}; known are {', '.join(tools)}", 1)


def _checked(parser: Callable[[Input], Result], output: Input) -> Result:
    """The result of a parser; a topology that contradicts itself is an output that does."""
    try:
        return parser(output)
    except TopologyError as error:
        raise FormatError(str(error)) from error


def _json(source: Source) -> Parsed:
    document = documents.decode(source)
    for parser in PARSERS:
        if isinstance(parser, JsonParser) and parser.recognises(document):
            return parser.parse(document)
    value = document.value
    if isinstance(value, dict) and value and all(isinstance(item, str) for item in value.values()):
        for parser in PARSERS:
            if isinstance(parser, FolderParser) and parser.recognises(value):
                return parser.parse(value)
    if isinstance(value, dict) and "resultType" in str(value.get("data", ""))[:80]:
        raise document.error("an answer of Prometheus; give the text of the exporter itself")
    raise document.error("JSON, but not of a tool that is known here")


def _warned(result: Parsed, matches: Sequence[TextParser]) -> Parsed:
    """The result of the first of the parsers that recognise a text, with a warning of the others."""
    names = [parser.tool for parser in matches[1:] if not parser.is_expected]
    if not isinstance(result, NodeTopology) or matches[0].expects_others or not names:
        return result
    warning = f"the text also looks like that of {', '.join(names)}: give it in a file of its own"
    return replace(result, warnings=(*result.warnings, warning))


__all__ = ["FormatError", "Parsed", "merged", "parse", "parse_tree"]
