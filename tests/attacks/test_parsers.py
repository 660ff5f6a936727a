"""Whatever is given to a reader, it answers or says in its own error what is wrong, and soon."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import topology_outputs as rendered
from typer.testing import CliRunner

from kopt.cli.main import app
from kopt.core.staging.staged_data import StageResult
from kopt.formats.topology import FormatError, parse
from kopt.formats.yaml_text import YamlError, load_all_yaml, load_yaml

CPU_S = 20.0
"""Of one answer. Tens of milliseconds are usual; a machine that is many times slower is no failure."""


@contextmanager
def soon() -> Iterator[None]:
    began = time.thread_time()
    yield
    assert time.thread_time() - began < CPU_S


BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 12)
)
MERGED = "a0: &a0 {x: 1}\n" + "".join(f"a{n}: &a{n}\n  <<: [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 12))
YAML_BOMBS = {
    "aliases of aliases": BOMB,
    "merge keys of merge keys": MERGED,
    "itself": "a: &a [*a]\n",
    "deep": "[" * 100_000,
    "deep lines": "- " * 50_000,
    "a date there is not": "a: 2024-99-99\n",
    "a list as a key": "? [a]\n: b\n",
    "a zero": "a: \0",
    "a number too long": "a: " + "9" * 100_000,
    "no base 60": "a: 1:" + "1:" * 1000 + "1.0",
    "a name that is not there": "*a",
    "code": "!!python/object/apply:os.system [ls]",
    "no digits": "!!int ''",
    "no truth": "!!bool x",
    "a shift beyond days": "a: 2001-12-14t21:59:43.10+99:99",
}


@pytest.mark.parametrize("text", YAML_BOMBS.values(), ids=YAML_BOMBS.keys())
def test_yaml_that_grows_or_trips_the_library_is_refused_in_words(text: str) -> None:
    with soon(), pytest.raises(YamlError):
        load_all_yaml(text)


def test_aliases_that_people_write_are_read() -> None:
    assert load_yaml("base: &b {lr: 1}\nbig:\n  <<: *b\n  n: 2\nagain: *b\n") == {
        "base": {"lr": 1},
        "big": {"lr": 1, "n": 2},
        "again": {"lr": 1},
    }
    assert load_yaml("") is None


@pytest.mark.parametrize("command", ["recommend", "estimate"])
@pytest.mark.parametrize("name", ["aliases of aliases", "merge keys of merge keys", "a date there is not", "itself"])
def test_a_manifest_that_is_a_bomb_ends_the_command_with_a_sentence(
    command: str, name: str, tmp_path: Path, kopt_home: Path
) -> None:
    manifest = tmp_path / "job.yaml"
    manifest.write_text(f"spec:\n  containers: []\n{YAML_BOMBS[name]}")
    with soon():
        done = CliRunner().invoke(app, [command, str(manifest)])
    assert done.exit_code not in (0, None)
    assert "not YAML or JSON" in str(done.exception) + done.output


def one_cell_more(text: str) -> Iterator[str]:
    """The text with a word more at the end of each of its lines in turn."""
    lines = text.splitlines()
    for at in range(len(lines)):
        for word in ("x", "\tx", "\t0", " N/A", "\t X ", "\t\t1-3"):
            yield "\n".join([*lines[:at], lines[at] + word, *lines[at + 1 :]]) + "\n"


M = rendered.machine(3, 4, 2)
MATRICES: dict[str, Callable[[], str]] = {
    "nvidia": lambda: rendered.topo_m(M),
    "nvidia, short": lambda: "\tGPU0\tGPU1\nGPU0\t X \tNV4\nGPU1\tNV4\t X \n",
    "rocm": lambda: rendered.rocm_topo(M),
    "amd": lambda: rendered.amd_topo(M),
    "fabric": rendered.fabric,
    "tests": rendered.nccl_tests,
    "links": rendered.nvlink_status,
    "pasted": lambda: rendered.pasted(M),
    "bare": lambda: rendered.bare(M),
}


@pytest.mark.parametrize("make", MATRICES.values(), ids=MATRICES.keys())
def test_a_table_with_one_cell_too_many_is_read_or_refused(make: Callable[[], str]) -> None:
    for text in one_cell_more(make()):
        try:
            parse(text)
        except FormatError:
            continue


@pytest.mark.parametrize("size", ["1e999", "NaN", "-1", "true", '"7"', "9" * 400, "[" * 100_000])
def test_the_last_words_of_a_download_hold_no_impossible_size(size: str) -> None:
    words = f'{{"complete":true,"digest":"d","reason":"","message":"","objects":1,"bytes":{size}}}'
    assert StageResult.from_json(words) is None
    assert StageResult.from_json(words.replace(f":{size}}}", ":7}")) == StageResult(True, "d", None, "", 7, 1)
