"""Interpreters of the trainers' environments, for tests that run real trainers."""

import os
import subprocess
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@cache
def _environment(name: str) -> str:
    done = subprocess.run([ROOT / "scripts" / "trainer-env.sh", name], capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else f"!{done.stderr.strip()[-500:]}"


@pytest.fixture(scope="session")
def trainer_python() -> Callable[[str], str]:
    """``trainer_python("newest")``: an interpreter with that torch; skipped (CI: failed) where it cannot be built."""

    def find(name: str) -> str:
        found = _environment(name)
        if found.startswith("!"):
            message = f"the environment {name} cannot be built: {found[1:]}"
            if os.environ.get("KOPT_REQUIRE_DATA") == "1":
                pytest.fail(message)
            pytest.skip(message)
        return found

    return find
