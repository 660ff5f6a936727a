"""Code in the documentation that needs no server is run, and prints what stands below it.

A comment above a fence marks it: ``<!-- run -->``, ``<!-- run: slow -->`` for what takes more than ten seconds,
``<!-- run: long -->`` for what executes a script (in long runs), and ``<!-- output -->`` for what the block before it
prints. In a ``console`` block lines after ``$ `` are run by bash in a
folder that looks like the repository; what stands between them is their output. ``…`` is anything, in a line or as a
line of its own any number of lines. Spaces do not count, numbers may differ by two percent.
"""

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from documents import ROOT, Block, blocks, documents

BETWEEN = 0.02
LIMIT_S = 400
_NUMBER = re.compile(r"[-+]?\d[\d,]*\.?\d*")


@dataclass(frozen=True)
class Example:
    """A block that is run, and its output where that stands in the next block."""

    block: Block
    output: str = ""


def examples() -> list[Example]:
    found: list[Example] = []
    for file in documents():
        every = list(blocks(file))
        for block, after in zip(every, (*every[1:], None), strict=False):
            if block.mark.startswith("run"):
                found.append(Example(block, after.text if after and after.mark == "output" else ""))
    return found


def _parameters() -> list[object]:
    marks = {"run: slow": [pytest.mark.slow], "run: long": [pytest.mark.slow, pytest.mark.long]}
    return [
        pytest.param(example, id=example.block.name, marks=marks.get(example.block.mark, [])) for example in examples()
    ]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Looks like the repository, but what is written there is not written into it."""
    for path in ROOT.iterdir():
        if not path.name.startswith(".") and path.name not in ("build", "dist"):
            (tmp_path / path.name).symlink_to(path)
    return tmp_path


@pytest.fixture(scope="module")
def with_fake_device(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home for the examples that execute scripts: compiling the fake device takes longer than most of them."""
    return tmp_path_factory.mktemp("home")


@pytest.fixture
def environ(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, with_fake_device: Path
) -> dict[str, str]:
    executes = "kopt estimate" in request.getfixturevalue("example").block.text
    home = with_fake_device if executes else tmp_path_factory.mktemp("home")
    bin_folder = Path(sys.executable).parent
    return {**os.environ, "PATH": f"{bin_folder}:{os.environ['PATH']}", "KOPT_HOME": str(home), "COLUMNS": "160"}


@pytest.mark.timeout(LIMIT_S + 20)
@pytest.mark.parametrize("example", _parameters())
def test_an_example_runs_and_prints_what_is_shown(example: Example, folder: Path, environ: dict[str, str]) -> None:
    if example.block.language == "python":
        printed = _run([sys.executable, "-P", "-c", example.block.text], folder, environ)
        assert not example.output or agrees(printed, example.output), printed
        return
    assert example.block.language in ("console", "shell"), f"{example.block.name}: {example.block.language} is not run"
    for command, shown in commands(example.block.text):
        printed = _run(["bash", "-c", command], folder, environ)
        assert not shown.strip() or agrees(printed, shown), f"{command}\n{printed}"


def _run(command: Sequence[str], folder: Path, environ: dict[str, str]) -> str:
    done = subprocess.run(
        command, cwd=folder, env=environ, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def commands(text: str) -> list[tuple[str, str]]:
    """Each command of a console block with what is shown below it; a backslash goes on in the next line."""
    found: list[tuple[str, str]] = []
    for line in text.replace("\\\n", " ").splitlines():
        if line.startswith("$ "):
            found.append((line[2:], ""))
        else:
            assert found, "a console block begins with a command"
            found[-1] = (found[-1][0], f"{found[-1][1]}{line}\n")
    return found


def agrees(printed: str, shown: str) -> bool:
    """Whether the lines that are shown are those that were printed."""
    return _same(_lines(printed), _lines(shown))


def _lines(text: str) -> list[str]:
    return [" ".join(line.split()) for line in text.splitlines() if line.strip(" ─")]


def _same(printed: list[str], shown: list[str]) -> bool:
    if not shown:
        return not printed
    if shown[0] == "…":
        return any(_same(printed[skipped:], shown[1:]) for skipped in range(len(printed) + 1))
    return bool(printed) and _line_agrees(printed[0], shown[0]) and _same(printed[1:], shown[1:])


def _line_agrees(printed: str, shown: str) -> bool:
    pattern = "".join(".*" if piece == "…" else _pattern(piece) for piece in re.split("(…)", shown))
    found = re.fullmatch(pattern, printed)
    numbers = [number for piece in shown.split("…") for number in _NUMBER.findall(piece)]
    return found is not None and all(_near(a, b) for a, b in zip(found.groups(), numbers, strict=True))


def _pattern(text: str) -> str:
    """Its words as they are, and a group for each number."""
    number = rf"({_NUMBER.pattern})"
    return number.join(re.escape(word) for word in _NUMBER.split(text))


def _near(printed: str, shown: str) -> bool:
    if printed == shown:
        return True
    a, b = float(printed.replace(",", "").rstrip(".")), float(shown.replace(",", "").rstrip("."))
    return abs(a - b) <= BETWEEN * max(abs(a), abs(b))


def test_there_are_examples() -> None:
    assert len(examples()) >= 6


@pytest.mark.parametrize(
    ("printed", "shown", "same"),
    [
        ("a  1.00\nb\n", "a 1.01\nb", True),
        ("a 1.00\n", "a 1.10", False),
        ("a 1\nb\n", "a 1", False),
        ("a\nb\nc\n", "a\n…\nc", True),
        ("a\nb\nc\n", "…\nb", False),
        ("GPU 7 of 8", "GPU … of 8", True),
        ("GPU 7 of 8", "GPU 7 of 9", False),
        ("x (y)", "x (y)", True),
    ],
)
def test_outputs_are_compared_in_words_and_numbers(printed: str, shown: str, same: bool) -> None:
    assert agrees(printed, shown) is same


def test_a_command_goes_on_behind_a_backslash() -> None:
    assert commands("$ a \\\n  b\nout\n$ c\n") == [("a    b", "out\n"), ("c", "")]
