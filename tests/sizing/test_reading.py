"""Sources of strangers are parsed where nothing they do to the parser matters."""

import time
from dataclasses import replace

import pytest

from kopt.formats.entrypoint import EntrypointError
from kopt.tracing.confined_reading import LIMITS, read_script_confined


def test_facts_come_back_as_if_read_here() -> None:
    facts = read_script_confined("import torch\nargs = TrainingArguments(bf16=True)\nx = 'ü'")
    assert (facts.frameworks, facts.settings) == (("torch",), {"bf16": True})


@pytest.mark.parametrize(
    "source",
    ["x = (", "\0", "a" * 3_000_000, "x = " + "(\n" * 99 + "1" + ")" * 99 + " +" * 3, "def f(:\n", "\ud800"],
    ids=["open", "NUL", "large", "nested", "wrong", "surrogate"],
)
def test_hostile_sources_are_refused(source: str) -> None:
    with pytest.raises(EntrypointError):
        read_script_confined(source)


def test_a_source_that_outlasts_the_limit_is_refused() -> None:
    began = time.monotonic()
    source = "x = [" + "1," * 400_000 + "]\n"
    with pytest.raises(EntrypointError, match=r"wall limit|characters"):
        read_script_confined(source.replace("1,1,", "1,\n1,"), limits=replace(LIMITS, wall_s=0.2))
    assert time.monotonic() - began < 8
