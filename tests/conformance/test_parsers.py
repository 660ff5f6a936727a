"""What every parser of topology tools does: it reads its own outputs alone, and says where one is damaged, soon."""

import json
import time
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from parser_outputs import OUTPUTS

from kopt.cli.errors import Refused
from kopt.cli.topology.tree import load_yaml
from kopt.formats.topology import FormatError, documents, parse
from kopt.formats.topology.parser import FolderParser, JsonParser, Parser, TextParser, XmlParser, YamlParser
from kopt.formats.topology.parsers import PARSERS
from kopt.formats.topology.text import source_of

KINDS = (TextParser, XmlParser, JsonParser, FolderParser, YamlParser)
LONG_S = 5.0
"""Of processor time, for an output a thousand times as long as usual."""
every_parser = pytest.mark.parametrize("parser", PARSERS, ids=[parser.tool for parser in PARSERS])


def recognising(text: str, kind: type[Parser]) -> list[Parser]:
    """The parsers of one kind of input that recognise a text, in the order of the list."""
    source = source_of(text)
    if kind in (TextParser, XmlParser, YamlParser):
        return [
            p
            for p in PARSERS
            if isinstance(p, kind) and not isinstance(p, JsonParser | FolderParser) and p.recognises(source)
        ]
    if not documents.begins(source):
        return []
    document = documents.decode(source)
    if kind is JsonParser:
        return [p for p in PARSERS if isinstance(p, JsonParser) and p.recognises(document)]
    value = document.value
    is_folder = isinstance(value, Mapping) and all(isinstance(item, str) for item in value.values())
    return [p for p in PARSERS if isinstance(p, FolderParser) and is_folder and p.recognises(value)]


def cpu_seconds(run: Callable[[], Any]) -> float:
    before = time.process_time()
    run()
    return time.process_time() - before


def refusal(text: str) -> FormatError | None:
    try:
        assert json.dumps(parse(text, load_yaml).to_dict())
    except FormatError as error:
        return error
    except Refused as error:
        # The caller's YAML decoder, whose message names the line.
        return FormatError(str(error), 1)
    return None


def test_names_are_unique_and_every_parser_has_an_output() -> None:
    tools = [tool for parser in PARSERS for tool in parser.tools]
    assert len(set(tools)) == len(tools)
    assert list(OUTPUTS) == [parser.tool for parser in PARSERS]


@every_parser
def test_it_reads_its_own_outputs_and_no_other_parser_does(parser: Parser) -> None:
    for text in OUTPUTS[parser.tool]:
        first, *others = recognising(text, type(parser))
        assert first is parser
        assert all(
            parser.expects_others or other.is_expected
            for other in others
            if isinstance(other, TextParser) and isinstance(parser, TextParser)
        )
        assert refusal(text) is None
        if isinstance(parser, TextParser):
            assert not recognising(text, XmlParser)
            assert not recognising(text, YamlParser)


@every_parser
def test_a_text_of_something_else_is_not_its_own(parser: Parser) -> None:
    for text in ("bash: nvidia-smi: command not found\n", "{}", '{"a": "b"}', "<html></html>\n", "a: b\n"):
        assert parser not in recognising(text, type(parser))


@every_parser
def test_a_cut_output_is_refused_with_its_line_or_read(parser: Parser) -> None:
    refused = 0
    for text in OUTPUTS[parser.tool]:
        for end in range(1, len(text), max(1, len(text) // 40)):
            error = refusal(text[:end]) if text[:end].strip() else None
            if error is not None:
                refused += 1
                # A document that is decoded elsewhere has no lines any more.
                assert isinstance(parser, YamlParser) or error.line >= 1, f"{error} has no line: {text[:end][-200:]!r}"
    assert refused


@every_parser
@pytest.mark.parametrize("damage", ["\x00", "0" * 30, "{{{{", "<<<<", "\n\n", "|||"])
def test_damage_in_the_middle_ends_in_nothing_but_a_refusal(parser: Parser, damage: str) -> None:
    for text in OUTPUTS[parser.tool]:
        middle = len(text) // 2
        refusal(text[:middle] + damage + text[middle:])


@every_parser
def test_an_output_that_repeats_a_thousand_times_takes_bounded_time(parser: Parser) -> None:
    for text in OUTPUTS[parser.tool]:
        longer = text * max(2, min(1000, 1_000_000 // len(text)))
        assert cpu_seconds(lambda longer=longer: refusal(longer)) < LONG_S
