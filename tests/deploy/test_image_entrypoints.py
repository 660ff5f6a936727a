"""The images, as far as they can be made without a base image: what deploy/images/Dockerfile copies is copied into an
empty folder, its commands run there, and each container of the chart starts from what came of it."""

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from chart import NAMESPACE, ROOT, Helm
from controlplane.api import kubeconfig
from deploy.test_images import stages

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(1800)]
Object = dict[str, Any]
LIGHT = ("controllers", "agents", "staging")
"""Extras whose packages are installed in a minute; Ray and MLflow of the others take gigabytes."""
STARTS_WITHIN_S = 90.0
LACKING = re.compile(r"Traceback|ModuleNotFoundError|ImportError|FileNotFoundError|\bneeds the extra\b|pip install")
_COPY, _RUN, _ENV = "COPY ", "RUN ", "ENV "


@dataclass(frozen=True)
class Image:
    """What an image has beside its base."""

    prefix: Path
    variables: dict[str, str]

    def start(self, arguments: list[str], env: dict[str, str], log: Path) -> "subprocess.Popen[bytes]":
        """``kopt`` as the image's entry point, with nothing of this process: neither the repository nor variables."""
        variables = {**self.variables, **env, "PATH": f"{self.prefix}/bin:/usr/bin:/bin", "HOME": str(log.parent)}
        variables |= {"KOPT_HOME": str(log.parent), "TMPDIR": str(log.parent)}
        with log.open("wb") as output:
            return subprocess.Popen(
                [str(self.prefix / "bin" / "kopt"), *arguments],
                cwd="/",
                env=variables,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Image]:
    """``image(extra)``: the environment that the Dockerfile's own commands make."""
    root = tmp_path_factory.mktemp("image")
    source, wheel = root / "source", root / "wheel"
    source.mkdir()
    # Stands for the base image: a Python with pip and nothing else.
    subprocess.run([sys.executable, "-m", "venv", str(root / "base")], check=True)
    env = {**os.environ, "PATH": f"{root / 'base' / 'bin'}:/usr/bin:/bin", "KOPT_WHEEL": str(wheel)}
    env.pop("PYTHONPATH", None)

    def run(command: str) -> None:
        here = command.replace("/wheel", str(wheel))
        done = subprocess.run(["sh", "-ec", here], cwd=source, env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{command}\n{done.stdout[-2000:]}{done.stderr[-2000:]}"

    env["PYTHON_IMAGE"] = (ROOT / "deploy" / "images" / "base.lock").read_text().strip()
    for line in stages()["wheel"][1]:
        if line.startswith(_COPY):
            *names, target = line.removeprefix(_COPY).split()
            for name in names:
                # A folder becomes the target, a file goes into it.
                folder = (ROOT / name).is_dir()
                _copy(ROOT / name, source / target if folder else source / target / Path(name).name)
        elif line.startswith(_RUN):
            run(line.removeprefix(_RUN))
    variables = _variables(stages()["base"][1])

    def made(extra: str) -> Image:
        env["KOPT_PREFIX"] = str(root / extra)
        (line,) = stages()[f"{extra}-environment"][1]
        run(line.removeprefix(_RUN))
        return Image(root / extra, variables)

    return made


def _copy(path: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if path.is_dir():
        shutil.copytree(path, target, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    else:
        shutil.copy(path, target)


def _variables(lines: list[str]) -> dict[str, str]:
    text = " ".join(line.removeprefix(_ENV) for line in lines if line.startswith(_ENV))
    return dict(part.split("=", 1) for part in shlex.split(text))


def _containers(documents: list[Object], extra: str) -> Iterator[tuple[str, list[str], dict[str, str]]]:
    """Name, arguments and plain variables of what runs the image's entry point."""
    for document in documents:
        text = document.get("spec", {})
        for spec in (text.get("template"), text.get("jobTemplate", {}).get("spec", {}).get("template")):
            for container in ((spec or {}).get("spec") or {}).get("containers") or ():
                if f"/kopt-{extra}:" in container["image"] and not container.get("command"):
                    env = {one["name"]: one["value"] for one in container.get("env") or () if "value" in one}
                    yield container["name"], list(container.get("args") or ()), env


@pytest.mark.parametrize("extra", LIGHT)
def test_each_container_of_the_chart_starts_from_its_image(
    extra: str, image: Callable[[str], Image], charts: Helm, everything: Object, tmp_path: Path
) -> None:
    """Towards a cluster that does not answer: it says so, or tries again, and lacks no module and no file."""
    values = {**everything, **yaml.safe_load((ROOT / "deploy" / "values" / "evaluation.yaml").read_text())}
    values["predictions"] = everything["predictions"]
    containers = {name: (arguments, env) for name, arguments, env in _containers(charts.render(values), extra)}
    # The staging controller starts this one.
    containers |= {"stage": (["stage", "s3://none/none", "copies"], {})} if extra == "staging" else {}
    assert containers
    found = image(extra)
    access = kubeconfig(tmp_path / "kubeconfig", "https://127.0.0.1:1", Path(__file__), {"token": "none"})
    usual = {"POD_NAME": "pod", "POD_NAMESPACE": NAMESPACE, "POD_IP": "127.0.0.1", "NODE_NAME": "node"}
    running = {}
    for name, (arguments, env) in containers.items():
        folder = tmp_path / name
        folder.mkdir()
        arguments = [one.replace("$(POD_NAMESPACE)", NAMESPACE) for one in arguments]
        log = folder / "log"
        running[name] = (found.start(arguments, {**usual, **env, "KUBECONFIG": str(access)}, log), log)
    end_s = time.monotonic() + STARTS_WITHIN_S
    while time.monotonic() < end_s and not all(log.stat().st_size for _, log in running.values()):
        time.sleep(0.5)
    time.sleep(3)
    for process, _ in running.values():
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    wrong = {name: log.read_text()[-1500:] for name, (_, log) in running.items() if LACKING.search(log.read_text())}
    assert not wrong
    silent = [name for name, (_, log) in running.items() if not log.stat().st_size]
    assert not silent, "they never came so far as to say anything"
