"""``kubectl kopt …`` is ``kopt …``: by the entry point of the package, and by krew's archive."""

import hashlib
import os
import subprocess
import sys
import tarfile
from importlib.metadata import entry_points
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
URL = "https://releases.example.com/kubectl-kopt.tar.gz"


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("krew")
    for name in ("one", "two"):
        command = [sys.executable, "-P", str(ROOT / "deploy/krew/package.py"), str(folder / name), URL]
        subprocess.run(command, check=True)
    return folder


def test_the_manifest_names_the_archive_by_its_digest(packed: Path) -> None:
    archive = (packed / "one/kubectl-kopt.tar.gz").read_bytes()
    assert archive == (packed / "two/kubectl-kopt.tar.gz").read_bytes()
    plugin = yaml.safe_load((packed / "one/kopt.yaml").read_text())
    assert (plugin["kind"], plugin["metadata"]["name"]) == ("Plugin", "kopt")
    assert plugin["spec"]["version"].startswith("v0.")
    assert {platform["selector"]["matchLabels"]["os"] for platform in plugin["spec"]["platforms"]} == {
        "linux",
        "darwin",
    }
    for platform in plugin["spec"]["platforms"]:
        assert platform["sha256"] == hashlib.sha256(archive).hexdigest()
        assert (platform["uri"], platform["bin"]) == (URL, "kubectl-kopt")


def _installed(packed: Path, folder: Path) -> str:
    with tarfile.open(packed / "one/kubectl-kopt.tar.gz") as tar:
        assert "LICENSE" in tar.getnames()
        tar.extractall(folder, filter="data")
    return str(folder / "kubectl-kopt")


@pytest.mark.parametrize(("tool", "words"), [("kopt", "why a/b"), ("uvx", "--from kaiwo-optimizer kopt why a/b")])
def test_the_plugin_calls_kopt_or_uv(packed: Path, tmp_path: Path, tool: str, words: str) -> None:
    (tmp_path / "bin").mkdir()
    stand_in = tmp_path / "bin" / tool
    stand_in.write_text('#!/bin/sh\necho "$@"\n')
    stand_in.chmod(0o755)
    environ = {"PATH": f"{tmp_path / 'bin'}:/bin"}
    plugin = _installed(packed, tmp_path)
    done = subprocess.run([plugin, "why", "a/b"], capture_output=True, text=True, check=True, env=environ)
    assert done.stdout.strip() == words


def test_without_either_it_says_what_to_install(packed: Path, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/sh").symlink_to("/bin/sh")
    plugin = _installed(packed, tmp_path)
    environ = {"PATH": str(tmp_path / "bin")}
    done = subprocess.run([plugin, "why"], capture_output=True, text=True, check=False, env=environ)
    assert done.returncode == 1
    assert "pip install kaiwo-optimizer" in done.stderr


def test_the_package_brings_the_plugin() -> None:
    (script,) = entry_points(group="console_scripts", name="kubectl-kopt")
    code = f"from {script.module} import {script.attr} as run; run()"
    done = subprocess.run(
        [sys.executable, "-P", "-c", code, "why", "--help"], capture_output=True, text=True, check=True, env=os.environ
    )
    assert "kubectl kopt why" in done.stdout
