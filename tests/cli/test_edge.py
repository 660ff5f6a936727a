"""Answers on stdout, everything else on stderr, statuses 0, 1 and 2, no tracebacks."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from kopt.cli.errors import Refused, explain
from tests.cli.conftest import Done

VERBS = [
    ("up",),
    ("status",),
    ("down",),
    ("version",),
    ("doctor",),
    ("reasons",),
    ("train",),
    ("models", "list"),
    ("models", "compare"),
    ("models", "promote"),
    ("models", "rollback"),
    ("demand", "forecast"),
    ("demand", "backtest"),
    ("demand", "lend"),
    ("demand", "explain"),
]


@pytest.mark.parametrize("verb", VERBS, ids=" ".join)
def test_every_verb_has_help_with_an_example(kopt: Callable[..., Done], verb: tuple[str, ...]) -> None:
    done = kopt(*verb, "--help")
    assert done.status == 0
    assert f"kopt {' '.join(verb)}" in done.out.replace("\n", " ")
    assert "Example" in done.out
    assert "--output" in done.out


@pytest.mark.parametrize(
    "arguments",
    [
        ("nonsense",),
        ("version", "-o", "xml"),
        ("train",),
        ("train", "weather"),
        ("reasons", "WEATHER"),
        ("demand", "forecast"),
        ("demand", "forecast", "x", "--horizons", "soon"),
        ("demand", "forecast", "x", "--quantiles", "2"),
        ("demand", "forecast", "http://127.0.0.1:1"),
        ("demand", "backtest", "x", "--out", "y"),
        ("demand", "backtest", "x", "--out", "y", "--group-cv", "colour"),
        ("demand", "lend", "x", "--risk", "0"),
        ("demand", "backtest", "x", "--out", "y", "--group-cv", "source", "--model", "champion"),
        ("models", "promote", "--force"),
        ("models", "list", "-p", "weather"),
        ("train", "demand", "--data", "x", "--prometheus", "http://x"),
        ("train", "demand", "--query", "x"),
        ("train", "demand", "--since", "forever"),
        ("demand", "forecast", "x", "--query", "up"),
    ],
    ids=" ".join,
)
def test_wrong_usage_ends_with_2_and_says_what_is_wrong(kopt: Callable[..., Done], arguments: tuple[str, ...]) -> None:
    done = kopt(*arguments)
    assert (done.status, done.out) == (2, "")
    assert done.err


def test_a_refusal_ends_with_1_in_one_line_on_stderr(command: Callable[..., Done]) -> None:
    done = command("status", "-o", "json")
    assert (done.status, done.out) == (1, "")
    assert done.err.startswith("kopt: no platform runs on ")
    assert done.err.count("\n") == 1


def test_an_answer_is_on_stdout_alone(command: Callable[..., Done]) -> None:
    done = command("version", "-o", "json")
    assert (done.status, done.err) == (0, "")
    assert done.json["schema"] == "kopt/v1"
    assert "ray" in {row["package"] for row in done.json["packages"]}


def test_help_loads_nothing_heavy() -> None:
    script = (
        "import sys; from kopt.cli.main import app\n"
        "try: app(['--help'])\n"
        "except SystemExit: print('loaded', *sorted(set(sys.argv[1:]) & set(sys.modules)))"
    )
    heavy = ("numpy", "pandas", "pyarrow", "lightgbm", "ray", "mlflow", "feast", "torch", "aiohttp", "fastapi")
    done = subprocess.run(
        [sys.executable, "-P", "-c", script, *heavy], capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout.splitlines()[-1].split() == ["loaded"]


def test_a_bug_is_one_line_unless_the_traceback_is_asked_for(command: Callable[..., Done], tmp_path: Path) -> None:
    settings = tmp_path / "kopt.toml"
    settings.write_text("api_port = 'many'")
    quiet = command("status", environ={"KOPT_CONFIG": str(settings)})
    loud = command("status", environ={"KOPT_CONFIG": str(settings), "KOPT_DEBUG": "1"})
    assert quiet.status == 1
    assert "Traceback" not in quiet.err
    assert "a port is a number" in quiet.err
    assert loud.status == 1
    assert "Traceback" in loud.err


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (Refused("do this"), "do this"),
        (ValueError("odd"), "ValueError: odd (KOPT_DEBUG=1 shows where)"),
        (FileNotFoundError(2, "No such file or directory", "/x"), "/x: No such file or directory"),
        (Refused("two\nlines\x1b[31m"), "two lines\\x1b[31m"),
        (
            ModuleNotFoundError("no", name="ray.serve"),
            "this needs the package 'ray.serve', which is not installed: pip install 'kaiwo-optimizer[serving]'",
        ),
    ],
)
def test_errors_are_sentences(error: Exception, sentence: str) -> None:
    assert explain(error) == sentence
