"""Components are built once, by one process, from exactly what their module files say."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from controlplane import build
from controlplane.plane import binary
from controlplane.plugin import given

pytestmark = pytest.mark.cluster

PROGRAM = 'package main\n\nfunc main() { println("hello") }\n'


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A group of one small command, and an empty cache."""
    folder = tmp_path / "modules" / "small"
    folder.mkdir(parents=True)
    (folder / "go.mod").write_text("module kopt.test/small\n\ngo 1.26\n\ntool kopt.test/small\n")
    (folder / "go.sum").touch()
    (folder / "main.go").write_text(PROGRAM)
    toolchain = build.go()
    monkeypatch.setattr(build, "HERE", folder.parent)
    monkeypatch.setattr(build, "GROUPS", {"small": build.Group("small", renamed=(("small", "hello"),))})
    monkeypatch.setattr(build, "_found_go", [toolchain])
    # Go's own cache lies there too by default; without it the standard library would be compiled anew.
    monkeypatch.setenv("GOCACHE", subprocess.check_output([toolchain, "env", "GOCACHE"], text=True).strip())
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return folder


def test_a_command_is_built_once_into_the_cache(
    module: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with ThreadPoolExecutor(2) as several:
        first, second = several.map(build.binaries, ["small", "small"])
    assert first == second
    assert first.is_relative_to(tmp_path / "cache" / "kopt" / "control-plane")
    assert subprocess.run([first / "hello"], capture_output=True, text=True, check=True).stderr == "hello\n"
    said = capsys.readouterr().err
    assert said.count("building small") == 1
    assert "waiting for another process" in said


def test_changed_module_files_build_again(module: Path) -> None:
    before = build.binaries("small")
    (module / "go.mod").write_text((module / "go.mod").read_text() + "\n// changed\n")
    assert build.binaries("small") != before


def test_a_failed_build_says_why_and_is_not_tried_again(module: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (module / "main.go").write_text(PROGRAM.replace("println", "printn"))
    for _ in range(2):
        with pytest.raises(build.BuildError, match="undefined: printn"):
            build.binaries("small")
    assert capsys.readouterr().err.count("building small") == 1
    build._failed.clear()


def test_given_binaries_are_used_and_not_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(tmp_path))
    monkeypatch.delenv("KOPT_TEST_KUBECONFIG", raising=False)
    for name in ("etcd", "kube-apiserver"):
        (tmp_path / name).touch()
    assert binary("etcd") == tmp_path / "etcd"
    assert given("etcd")
    assert not given("kubernetes")
    assert binary("kube-scheduler").parent == build.binaries("kubernetes")


def test_the_command_line_names_what_there_is() -> None:
    script = Path(build.__file__)
    done = subprocess.run([sys.executable, "-P", script, "nothing"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "kubernetes" in done.stderr
