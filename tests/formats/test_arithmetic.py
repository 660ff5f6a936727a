"""Arithmetic of launch scripts, which is computed without a shell."""

import shutil
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kopt.formats.entrypoint.arithmetic import whole_number
from kopt.formats.entrypoint.shell import Shell, commands


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("$(expr 16 / $n)", "4"),
        ("`expr $n \\* 3`", "12"),
        ("$((n * 2 + 1))", "9"),
        ("$(( ($n + 2) / m ))", "3"),
        ("$(expr 32 / $n / $m)", "4"),
    ],
)
def test_numbers_that_scripts_compute_are_known(written: str, read: str) -> None:
    shell = Shell()
    (command,) = commands(f"n=4\nm=2\ntrain --steps {written}", shell)
    assert command.argv == ("train", "--steps", read)
    assert not shell.unknown


@pytest.mark.parametrize(
    "written", ["$(expr 1 + $absent)", "$((absent + 1))", "$(nproc)", "$(expr 1 / 0)", "$((2 ** 3))"]
)
def test_what_only_a_shell_knows_stays_a_reason(written: str) -> None:
    shell = Shell()
    (command,) = commands(f"train --steps {written}", shell)
    assert not command.argv[2].isdigit()
    assert shell.unknown


@pytest.mark.parametrize("text", ["", "1 2", "((1", "1)", "+", "a", "1" * 300, "1 +", "(" * 150 + "1"])
def test_what_is_no_calculation_has_no_value(text: str) -> None:
    assert whole_number(text) is None


_EXPRESSIONS = st.recursive(
    st.integers(0, 10_000).map(str),
    lambda inner: st.tuples(inner, st.sampled_from("+-*/%"), inner).map(lambda parts: f"({' '.join(parts)})"),
    max_leaves=6,
)


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash to compare with")
@given(expression=_EXPRESSIONS)
def test_a_shell_computes_the_same(expression: str) -> None:
    done = subprocess.run(["bash", "-c", f"echo $(({expression}))"], capture_output=True, text=True, check=False)
    expected = int(done.stdout) if done.returncode == 0 and done.stdout.strip() else None
    assert whole_number(expression) == expected
