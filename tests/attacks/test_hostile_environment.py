"""Environments, manifests and neighbours of `kopt estimate` that want more than to be looked at."""

import functools
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kopt.core.workload.sizing import TraceCoverage
from kopt.models.sizing.estimate import EstimateOptions, read_code
from kopt.tracing import sandbox
from kopt.tracing import trace as tracing
from kopt.tracing.sandbox import ConfinementError, Limits, Outcome, interpreter_folders, run_confined

SYSTEM_PYTHON = "/usr/bin/python3"
RUNS = """
import os
try: open({mark!r} + ".outside", "w").write(str(os.getpid()))
except OSError: pass
"""


@pytest.fixture
def environment(tmp_path: Path) -> Path:
    """A virtual environment that runs its author's code wherever Python lets it; what got out is ``mark.outside``."""
    if not Path(SYSTEM_PYTHON).exists():
        pytest.skip("no system Python")
    folder = tmp_path / "environment"
    packages = folder / "lib" / "python3.11" / "site-packages"
    (packages / "torch").mkdir(parents=True)
    (folder / "bin").mkdir()
    (folder / "bin" / "python").symlink_to(SYSTEM_PYTHON)
    (folder / "pyvenv.cfg").write_text("home = /usr/bin\ninclude-system-site-packages = false\n")
    code = RUNS.format(mark=str(tmp_path / "mark"))
    (packages / "evil.pth").write_text(f"import evil_module; exec({code!r})\n")
    for name in ("evil_module.py", "sitecustomize.py", "usercustomize.py", "torch/__init__.py", "torch/version.py"):
        (packages / name).write_text(code)
    return folder


def size(folder: Path, command: Any = "train.py", **options: Any) -> Any:
    """The estimate of a script in a folder of its own."""
    (folder / "project").mkdir(exist_ok=True)
    (folder / "project" / "train.py").write_text("import torch")
    options.setdefault("folder", folder / "project")
    return read_code(command, settings=None, options=EstimateOptions(timeout_s=30, **options)).code


@pytest.mark.parametrize("by", ["--python", "VIRTUAL_ENV", "CONDA_PREFIX", "PATH"])
def test_nothing_of_an_environment_runs_outside(
    environment: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    python = str(environment / "bin" / "python") if by == "--python" else None
    if by in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        monkeypatch.setenv(by, str(environment))
    if by == "PATH":
        monkeypatch.setenv("PATH", f"{environment / 'bin'}:{os.environ['PATH']}")
        python = "python"
    code = size(tmp_path, python=python)
    assert code.coverage is TraceCoverage.FAILED
    assert not (tmp_path / "mark.outside").exists()


@pytest.mark.parametrize("variable", ["PYTHONSTARTUP", "PYTHONPATH", "PYTHONHOME", "LD_PRELOAD", "CXX"])
def test_no_variable_of_a_command_starts_anything_outside(environment: Path, tmp_path: Path, variable: str) -> None:
    packages = environment / "lib" / "python3.11" / "site-packages"
    size(tmp_path, f"{variable}={packages} python train.py", python=str(environment / "bin" / "python"))
    assert not (tmp_path / "mark.outside").exists()


def test_an_interpreter_that_is_a_script_runs_confined_or_not_at_all(tmp_path: Path) -> None:
    script = tmp_path / "python"
    script.write_text(f'#!/bin/sh\ntouch {tmp_path}/mark.outside\nexec {SYSTEM_PYTHON} "$@"\n')
    script.chmod(0o755)
    size(tmp_path, python=str(script))
    assert not (tmp_path / "mark.outside").exists()


def _fifo(path: Path) -> None:
    os.mkfifo(path)


def _huge(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 40)


def _loop(path: Path) -> None:
    path.symlink_to(path)


def _endless(path: Path) -> None:
    path.symlink_to("/dev/zero")


@pytest.mark.parametrize("make", [_fifo, _huge, _loop, _endless])
@pytest.mark.parametrize("name", ["pyvenv.cfg", "lib/python3.11/site-packages/evil.pth"])
def test_reading_an_environment_ends(environment: Path, name: str, make: Callable[[Path], None]) -> None:
    (environment / name).unlink()
    make(environment / name)

    def late(number: int, frame: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(90)
    try:
        assert str(environment) in interpreter_folders(environment / "bin" / "python")
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def test_an_environment_shows_no_folders_of_others(
    environment: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    for name in (".ssh", "documents", "code"):
        (home / name).mkdir(parents=True)
        (home / name / "key").write_text("hunter2")
    (home / "code" / "module.py").write_text("")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.delenv("PYTHONUSERBASE", raising=False)
    wanted = ["/", "/etc", "/root", "/proc/1", "/var/lib", str(home), str(tmp_path), *map(str, home.iterdir())]
    packages = environment / "lib" / "python3.11" / "site-packages"
    (packages / "paths.pth").write_text("\n".join(wanted))
    (environment / "pyvenv.cfg").write_text(f"home = {home / '.ssh'}/bin\nhome = {home}/bin\nhome = /etc/bin\n")
    shown = interpreter_folders(environment / "bin" / "python")
    assert set(wanted) & set(shown) == {str(home / "code")}
    assert not any(folder.startswith(str(home / ".ssh")) for folder in shown)


@pytest.fixture
def visible(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What confined commands were allowed to read besides their own folder."""
    paths: list[str] = []

    def confined(argv: list[str], *, readable: Any = (), **options: Any) -> Outcome:
        paths.extend(map(str, readable))
        return run_confined(["/bin/true"], cwd=options["cwd"])

    monkeypatch.setattr(tracing, "run_confined", confined)
    return paths


def test_a_manifest_s_words_make_nothing_of_this_machine_visible(tmp_path: Path, visible: list[str]) -> None:
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "train.py").write_text("hunter2")
    words = ["python", "train.py", "--data", str(secret), "--key", "/etc/shadow", "../secret/train.py"]
    container = {"name": "a", "command": words}
    size(tmp_path, {"kind": "Pod", "spec": {"containers": [container]}}, python=SYSTEM_PYTHON)
    (tmp_path / "project" / "run.sh").write_text(f"python train.py --data {secret} /etc/shadow\n")
    size(tmp_path, "bash run.sh", python=SYSTEM_PYTHON)
    assert visible
    assert not any(path.startswith((str(secret), "/etc")) for path in visible)
    size(tmp_path, f"python train.py --data {secret}", python=SYSTEM_PYTHON)
    assert str(secret) in visible


def test_a_manifest_s_script_outside_is_not_read(tmp_path: Path, visible: list[str]) -> None:
    (tmp_path / "secret.py").write_text("model = AutoModelForCausalLM.from_pretrained('hunter2')\n" * 3)
    container = {"name": "a", "command": ["python", str(tmp_path / "secret.py")]}
    size(tmp_path, {"kind": "Pod", "spec": {"containers": [container]}}, python=SYSTEM_PYTHON)
    assert not any(path.startswith(str(tmp_path)) and "project" not in path for path in visible)


def test_what_an_environment_compiles_reaches_no_other(environment: Path, tmp_path: Path) -> None:
    other = tmp_path / "other" / "bin"
    other.mkdir(parents=True)
    (other / "python").symlink_to(SYSTEM_PYTHON)
    mine = tracing.environment_cache(str(environment / "bin" / "python"), tmp_path / "state")
    assert mine != tracing.environment_cache(str(other / "python"), tmp_path / "state")
    mine.mkdir(parents=True)
    for name in (b"../../evil.so", b"fake_device-" + b"0" * 20 + b".so/../x", b"/tmp/x", b""):
        tracing.keep_device(mine, name + b"\nELF")
    assert list(mine.iterdir()) == []
    for number in range(20):
        tracing.keep_device(mine, b"fake_device-%020x.so\nELF" % number)
    assert 0 < len(list(mine.iterdir())) < 10


@pytest.mark.parametrize("without", [("seccomp",), ("landlock", "mount"), ("landlock", "pid")])
def test_where_a_script_cannot_be_confined_formulas_answer_and_say_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, without: tuple[str, ...]
) -> None:
    monkeypatch.setattr(tracing, "run_confined", functools.partial(run_confined, without=without))
    line = (
        "python pretrain_gpt.py --num-layers 24 --hidden-size 2048 --num-attention-heads 16 "
        "--seq-length 2048 --max-position-embeddings 2048 --micro-batch-size 2 --global-batch-size 16 --bf16"
    )
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "pretrain_gpt.py").write_text(f"open({str(tmp_path / 'mark.outside')!r}, 'w')")
    code = size(tmp_path, line, python=SYSTEM_PYTHON)
    assert code.coverage is not TraceCoverage.FAILED
    assert any("refused: this machine offers neither" in warning for warning in code.warnings)
    assert not (tmp_path / "mark.outside").exists()


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A temporary folder of this test's alone, beside ``project``."""
    place = tmp_path / "temporary"
    place.mkdir()
    (tmp_path / "project").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    return place


def test_what_killed_runs_left_goes_with_the_next_one(temporary: Path, tmp_path: Path) -> None:
    project = str(tmp_path / "project")
    try:
        run_confined(["/bin/true"], cwd=project, without=["mount"])
    except ConfinementError:
        pytest.skip("without mounts of its own nothing is left on the disk here, as nothing runs")
    asking = (
        "import sys, tempfile; from kopt.tracing.sandbox import Limits, run_confined\n"
        f"tempfile.tempdir = {str(temporary)!r}\n"
        f"run_confined([{SYSTEM_PYTHON!r}, '-S', '-c', 'import time; time.sleep(300)'], cwd={project!r},"
        " limits=Limits(wall_s=300), without=['mount'])"
    )
    asker = subprocess.Popen([sys.executable, "-P", "-c", asking])
    give_up = time.monotonic() + 90
    while not list(temporary.glob("*/home")) and time.monotonic() < give_up:
        time.sleep(0.05)
    (left,) = temporary.iterdir()
    run_confined(["/bin/true"], cwd=tmp_path / "project")
    assert left.exists(), "a run that goes on lost its folder"
    asker.kill()
    asker.wait()
    while left.exists() and time.monotonic() < give_up:
        run_confined(["/bin/true"], cwd=tmp_path / "project")
    assert list(temporary.iterdir()) == []


def test_cleaning_up_touches_nothing_that_is_not_this_user_s(temporary: Path, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.mkdir(mode=0o700)
    (precious / "file").write_text("kept")
    (temporary / "kopt-confined-link").symlink_to(precious)
    (temporary / "kopt-confined-file").write_text("kept")
    (temporary / "kopt-confined-open").mkdir(mode=0o777)
    (temporary / "kopt-confined-open").chmod(0o777)
    stale = temporary / "kopt-confined-stale"
    stale.mkdir(mode=0o700)
    (stale / "inner").symlink_to(precious)
    names = {"kopt-confined-link", "kopt-confined-file", "kopt-confined-open"}
    if os.getuid() == 0:
        (temporary / "kopt-confined-other").mkdir(mode=0o700)
        os.chown(temporary / "kopt-confined-other", 65534, 65534)
        names.add("kopt-confined-other")
    run_confined(["/bin/true"], cwd=tmp_path / "project")
    assert {path.name for path in temporary.iterdir()} == names
    assert (precious / "file").read_text() == "kept"


def test_a_source_text_leaves_nothing_beside_the_user_s_files(tmp_path: Path, visible: list[str]) -> None:
    size(tmp_path, ["python", "-c", "import torch"], python=SYSTEM_PYTHON)
    assert [path.name for path in (tmp_path / "project").iterdir()] == ["train.py"]
    assert any("kopt-source-" in path for path in visible)


def test_a_folder_that_another_made_in_the_temporary_folder_is_not_used(
    environment: Path, temporary: Path, tmp_path: Path
) -> None:
    (temporary / f"kopt-{os.getuid()}").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere").mkdir()
    code = size(tmp_path, python=str(environment / "bin" / "python"))
    assert code.coverage is TraceCoverage.FAILED
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_the_sandbox_names_what_it_refuses(tmp_path: Path) -> None:
    with pytest.raises(ConfinementError, match="system calls"):
        sandbox.run_confined(["/bin/true"], cwd=tmp_path, limits=Limits(wall_s=5), without=["seccomp"])
