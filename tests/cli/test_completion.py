"""What the shell offers after TAB."""

import os
import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("kopt models promote ", {"demand", "sizing", "checkpoint", "bandwidth", "runtime"}),
        ("kopt models compare si", {"sizing"}),
        ("kopt train ch", {"checkpoint"}),
        ("kopt models list -p ba", {"bandwidth"}),
        ("kopt bandwidth estimate --gpu mi300", {"mi300x"}),
        ("kopt estimate --gpu A100-SXM4-8", {"A100-SXM4-80GB"}),
        ("kopt reasons NO_MOD", {"NO_MODEL"}),
    ],
)
def test_predictors_gpus_and_codes_are_completed(line: str, offered: set[str]) -> None:
    words = line.split(" ")
    environ = {
        "_KOPT_COMPLETE": "complete_bash",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(words) - 1),
        "_TYPER_COMPLETE_TESTING": "1",
    }
    done = subprocess.run(
        [sys.executable, "-P", "-c", "from kopt.cli.main import app; app(prog_name='kopt')"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **environ},
    )
    assert offered <= set(done.stdout.split()), done.stdout + done.stderr
