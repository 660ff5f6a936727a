"""What is printed for a framework is what its sources define; with clones of them, of every release that is named."""

import ast
import os
from pathlib import Path

import pytest
from benchmarked import benchmark_module

flags = benchmark_module("framework_flags")
Option, Classes = flags.Option, flags.Classes

_MEGATRON = """
class Base:
    num_layers: int = 0
    mode: Literal["full", "part"] | None = None

class TransformerConfig(Base):
    fused: bool = True
    shared: bool = False
    hidden: int = field(default=1, metadata={"argparse_meta": {"arg_names": ["--hidden-size", "--hidden"]}})
    left_out: int = 0

def add(parser):
    exclude = ["left_out"]
    ArgumentGroupFactory(TransformerConfig, exclude=exclude)
    parser.add_argument("--group-query-attention", action="store_true")
    parser.add_argument("--kind", choices=["rope", "none"])
"""
_TORCHTITAN = """
class Training:
    seq_len: int = 2048
    compile: bool = False

class JobConfig:
    training: Training = field(default_factory=Training)
"""


def test_options_are_read_from_syntax_trees() -> None:
    options = flags.megatron_options(Classes({"Megatron-LM/megatron/training/arguments.py": ast.parse(_MEGATRON)}))
    assert options == {
        "group-query-attention": Option(False),
        "kind": Option(True, frozenset({"rope", "none"})),
        "num-layers": Option(),
        "mode": Option(True, frozenset({"full", "part", "None", "null"})),
        "no-fused": Option(False),
        "disable-fused": Option(False),
        "shared": Option(False),
        "hidden-size": Option(),
        "hidden": Option(),
    }
    names: dict[str, set[str | None]] = {"mode": {"whole"}, "shared": {None}, "hidden": {None}, "kind": {"rope"}}
    assert flags.problems(names | {"heads": {"8"}, "no-fused": {"1"}}, options) == [
        "`heads` is not known",
        "`hidden` takes a value",
        "`mode` is none of None, full, null, part: whole",
        "`no-fused` takes no value",
    ]
    titan = Classes({"torchtitan/torchtitan/config/job_config.py": ast.parse(_TORCHTITAN)})
    assert flags.torchtitan_options(titan) == {"training.seq_len": Option(), "training.compile": Option(False)}


@pytest.mark.long
@pytest.mark.parametrize("framework", list(flags.VERSIONS))
def test_a_release_takes_all_that_is_printed_for_it(framework: str) -> None:
    folder = os.environ.get("KOPT_FRAMEWORKS", "")
    if not folder:
        pytest.skip("KOPT_FRAMEWORKS names no folder of clones of the frameworks")
    version = flags.VERSIONS[framework]
    options = version.read(flags.classes_of(version, Path(folder)))
    names = flags.printed(framework)
    assert len(names) >= 10
    assert not flags.problems(names, options)
    assert flags.problems(names | {"no-such-option": {None}}, options), "a wrong name is seen"
