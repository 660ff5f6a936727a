"""An output of each, damaged in any way, is refused or read, and nothing else happens."""

import json
from contextlib import suppress

import pytest
import topology_outputs as rendered
from example_budget import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from parser_outputs import MODEL, OUTPUTS, M

from kopt.agents.topology.merging import read
from kopt.cli.errors import Refused
from kopt.cli.topology.tree import load_yaml
from kopt.formats.topology import FormatError, parse, parse_tree
from kopt.formats.topology.fabric.topograph import recognises
from kopt.formats.topology.text import source_of

TEXTS = [text for texts in OUTPUTS.values() for text in texts]
PIECES = (
    "",
    "\n",
    "\t",
    " ",
    "-1",
    "0",
    "99999999999999999999",
    "nan",
    "1e400",
    "²",
    "\x00",
    "\ufeff",
    "{",
    "]",
    '"',
    "<",
    "&x;",
    "|",
)


@pytest.mark.parametrize("text", TEXTS)
@given(data=st.data())
@settings(max_examples=examples(30), deadline=None)
def test_a_damaged_output_is_refused_or_read(text: str, data: st.DataObject) -> None:
    for _ in range(data.draw(st.integers(1, 4))):
        start = data.draw(st.integers(0, len(text)))
        end = data.draw(st.integers(start, min(len(text), start + 40)))
        piece = data.draw(st.one_of(st.sampled_from(PIECES), st.text(max_size=6), st.just(text[start:end] * 2)))
        text = text[:start] + piece + text[end:]
    with suppress(FormatError, Refused):
        assert json.dumps(parse(text, load_yaml).to_dict())


@pytest.mark.parametrize(
    "value", ["2026-13-45", "0x_", "!!int x", "!!map ab", "!!binary x", "*a", "[" * 5000, "{? [a] : b}"]
)
def test_yaml_that_cannot_be_read_is_refused_by_the_command_and_the_agent(value: str) -> None:
    text = MODEL.replace("switches: [leaf1]", f"switches: {value}")
    assert recognises(source_of(text))
    with pytest.raises((Refused, FormatError)):
        parse(text, load_yaml)
    with pytest.raises(FormatError):
        read("fabric", text)


@given(data=st.data())
@settings(max_examples=examples(100), deadline=None)
def test_a_damaged_folder_is_refused_or_read(data: st.DataObject) -> None:
    tree = dict(rendered.kfd(M))
    for _ in range(data.draw(st.integers(1, 4))):
        path = data.draw(st.sampled_from(sorted(tree)))
        lines = tree[path].splitlines(keepends=True)
        lines[data.draw(st.integers(0, max(0, len(lines) - 1))) :][:1] = []
        tree[data.draw(st.sampled_from([path, f"{path}0"]))] = "".join(lines) + data.draw(st.sampled_from(PIECES))
    with suppress(FormatError):
        assert json.dumps(parse_tree(tree).to_dict())
