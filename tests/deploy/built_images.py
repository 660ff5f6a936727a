"""What deploy/images/Dockerfile makes, without a base image: its files in an empty folder, its commands run there."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from chart import ROOT
from deploy.test_images import stages

LACKING = re.compile(r"Traceback|ModuleNotFoundError|ImportError|FileNotFoundError|\bneeds the extra\b|pip install")
"""What a program prints that lacks a module or a file."""
_COPY, _RUN, _ENV = "COPY ", "RUN ", "ENV "


@dataclass(frozen=True)
class Image:
    """What an image has beside its base."""

    prefix: Path
    variables: dict[str, str]

    def start(self, command: Sequence[str], env: Mapping[str, str], log: Path) -> "subprocess.Popen[bytes]":
        """A program of the image, with nothing of this process: neither the repository nor variables. It writes beside
        ``log``."""
        folder, path = str(log.parent), f"{self.prefix}/bin:/usr/bin:/bin"
        variables = {**self.variables, **env, "PATH": path, "HOME": folder, "KOPT_HOME": folder, "TMPDIR": folder}
        with log.open("ab") as output:
            return subprocess.Popen(
                [str(self.prefix / "bin" / command[0]), *command[1:]],
                cwd="/",
                env=variables,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )


def image_builder(root: Path) -> Callable[[str], Image]:
    """``image_builder(root)(extra)``: the environment that the Dockerfile's own commands make, below ``root``."""
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
