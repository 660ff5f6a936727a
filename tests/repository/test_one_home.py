"""``make run`` and ``kopt`` in the shell beside it speak of one home."""

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("given", [None, "/somewhere"])
def test_make_leaves_the_home_to_the_environment(given: str | None) -> None:
    environ = {name: value for name, value in os.environ.items() if name not in ("KOPT_HOME", "MAKEFLAGS")}
    done = subprocess.run(
        ["make", "-s", "--eval", 'home-of-recipes: ; @echo "[$$KOPT_HOME]"', "home-of-recipes"],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
        env=environ | ({} if given is None else {"KOPT_HOME": given}),
    )
    assert done.stdout.strip() == f"[{given or ''}]"
