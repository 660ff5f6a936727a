"""A plain ``pip install kaiwo-optimizer`` runs the light commands; the others say what to install."""

import re
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

SOURCES = Path(__file__).parents[2] / "src"
_KOPT = "from kopt.cli.main import app; app(prog_name='kopt')"
_LOG = "2026-11-25 20:00:00 step 100 loss 2.0\n2026-11-25 20:00:10 step 110 loss 2.0\n"
_DEMAND = "series,t,value\n" + "".join(f"a,{300 * n},1\n" for n in range(600))
_SERVING = "pip install 'kaiwo-optimizer[serving]'"


def _brought(project: str, seen: set[str]) -> set[str]:
    """Names of a project and all that a plain installation of it brings."""
    name = re.sub(r"[-_.]+", "-", project).lower()
    try:
        needed = [Requirement(text) for text in distribution(name).requires or ()]
    except PackageNotFoundError:  # for another platform
        return seen
    if name not in seen:
        seen.add(name)
        for requirement in needed:
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                _brought(requirement.name, seen)
    return seen


@pytest.fixture(scope="session")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of packages as a plain installation has them: links into this one."""
    folder = tmp_path_factory.mktemp("plain")
    projects = _brought("kaiwo-optimizer", set())
    assert not {"pandas", "mlflow", "psutil", "lightgbm"} & projects
    for project in projects - {"kaiwo-optimizer"}:
        for file in distribution(project).files or ():
            top = file.parts[0]
            if top not in ("..", "__pycache__") and not (folder / top).exists():
                (folder / top).symlink_to(
                    Path(str(distribution(project).locate_file(file))).parents[len(file.parts) - 1] / top
                )
    return folder


def _run(plain: Path, code: str, *arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    (folder / "train.log").write_text(_LOG)
    (folder / "train.py").write_text("from transformers import TrainingArguments\n")
    (folder / "demand.csv").write_text(_DEMAND)
    home = {"HOME": str(folder), "KOPT_HOME": str(folder / "home")}
    return subprocess.run(
        [sys.executable, "-S", "-P", "-c", code, *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd=folder,
        env={"PATH": "/usr/bin:/bin", "COLUMNS": "200", "PYTHONPATH": f"{SOURCES}:{plain}", **home},
    )


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("doctor", "all is well"),
        ("version", "numpy"),
        ("reasons NO_MODEL", "kopt train"),
        ("logs classify train.log", "work at risk"),
        ("estimate --timeout 2 train.py", "peak: not known"),
        ("models list", "no model is registered yet"),
        ("status", "no platform runs"),
        ("why x --kubeconfig none", "there is no kubeconfig none"),
        ("queue --kubeconfig none", "there is no kubeconfig none"),
        ("evictions --kubeconfig none", "there is no kubeconfig none"),
        ("explain x", "gives no answer"),
    ],
)
def test_light_commands_run(plain: Path, tmp_path: Path, command: str, words: str) -> None:
    done = _run(plain, _KOPT, *command.split(), folder=tmp_path)
    said = done.stdout + done.stderr
    assert "not installed: pip" not in said, said
    assert "Traceback" not in said
    assert "KOPT_DEBUG=1" not in said
    assert words in said


@pytest.mark.parametrize(
    ("command", "install"),
    [
        ("models compare", _SERVING),
        ("up --no-browser", _SERVING),
        ("mlflow", _SERVING),
        ("demand forecast demand.csv", _SERVING),
        ("train demand --data demand.csv", "pip install 'kaiwo-optimizer[training]'"),
        ("stage https://127.0.0.1:1/x out", "pip install 'kaiwo-optimizer[staging]'"),
        ("controller lending", "pip install 'kaiwo-optimizer[controllers]'"),
        ("webhook", "pip install 'kaiwo-optimizer[controllers]'"),
        ("extender", "pip install 'kaiwo-optimizer[controllers]'"),
    ],
)
def test_the_others_name_the_one_command_that_installs_them(
    plain: Path, tmp_path: Path, command: str, install: str
) -> None:
    done = _run(plain, _KOPT, *command.split(), folder=tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    assert done.stderr.strip().splitlines()[-1].endswith(install)


def test_the_doctor_says_what_each_command_would_need(plain: Path, tmp_path: Path) -> None:
    done = _run(plain, _KOPT, "doctor", "-o", "json", folder=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    for words in ("kopt up, mlflow, demand", _SERVING, "kopt train", "kopt stage", "kaiwo-optimizer[controllers]"):
        assert words in done.stdout


@pytest.mark.parametrize(
    ("call", "words"),
    [
        ("kopt.classify_log('step 1 loss 2').status.state", "TRAIN"),
        ("kopt.estimate('train.py', timeout_s=2).gpu", "A100"),
        ("kopt.Forecast", "Forecast"),
        (
            "kopt.forecast('demand.csv')",
            f"kopt.forecast: this needs the package 'pandas', which is not installed: {_SERVING}",
        ),
    ],
)
def test_the_python_interface_does_alike(plain: Path, tmp_path: Path, call: str, words: str) -> None:
    done = _run(plain, f"import kopt; print({call})", folder=tmp_path)
    assert words in (done.stdout + done.stderr).strip().splitlines()[-1]
