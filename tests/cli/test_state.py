"""One platform per home, known by a lock that no stale file can fake."""

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from kopt.cli.errors import Refused
from kopt.cli.local import state


def running(pid: int = 1) -> state.Running:
    return state.Running(pid, "http://127.0.0.1:1", "http://127.0.0.1:2", "http://127.0.0.1:3", pids={"pages": 5})


def test_a_stale_state_file_is_no_running_platform(tmp_path: Path) -> None:
    state.write(tmp_path, running())
    assert state.read(tmp_path) is None


def test_while_held_the_state_is_read_and_afterwards_gone(tmp_path: Path) -> None:
    with state.hold(tmp_path):
        state.write(tmp_path, running())
        assert state.read(tmp_path) == running()
    assert not (tmp_path / state.STATE).exists()
    assert state.read(tmp_path) is None


def test_a_second_holder_is_refused_with_the_first_ones_addresses(tmp_path: Path) -> None:
    with state.hold(tmp_path):
        state.write(tmp_path, running())
        with pytest.raises(Refused, match=r"already runs.*127\.0\.0\.1:2.*kopt down"), state.hold(tmp_path):
            pass


def test_the_lock_falls_with_its_holder_even_when_it_is_killed(tmp_path: Path) -> None:
    code = (
        "import sys, pathlib, time; from kopt.cli.local import state\n"
        "with state.hold(pathlib.Path(sys.argv[1])): print('held', flush=True); time.sleep(60)"
    )
    child = subprocess.Popen([sys.executable, "-P", "-c", code, str(tmp_path)], stdout=subprocess.PIPE)
    assert child.stdout is not None
    assert child.stdout.readline() == b"held\n"
    assert state.is_held(tmp_path)
    child.kill()
    child.wait()
    child.stdout.close()
    assert not state.is_held(tmp_path)


def test_only_the_owner_reads_the_state(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        state.write(tmp_path, running())
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / state.STATE).stat().st_mode) == 0o600


@pytest.mark.parametrize("text", ["", "{", "[]", '{"pid": 1}', json.dumps({"schema": "kopt/v1", "strange": 1})])
def test_a_damaged_state_file_is_not_believed(tmp_path: Path, text: str) -> None:
    with state.hold(tmp_path):
        (tmp_path / state.STATE).write_text(text)
        assert state.read(tmp_path) is None
