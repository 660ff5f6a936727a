"""Staging from a server that speaks the Hugging Face hub's interface, and from git repositories."""

import hashlib
import os
import subprocess
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from kopt.core.staging.manifest import StagingError, Trouble
from tests.staging.conftest import content, run, staged
from tests.staging.servers import Hub, hub

FILES = {
    "config.json": b"{}",
    "inner/model-00001.safetensors": b"w" * 5000,
    "inner/model-00002.safetensors": b"v" * 100,
    "README with space.md": b"text",
    "empty": b"",
}
LARGE = frozenset(name for name in FILES if name.endswith("safetensors"))


def test_a_model_comes_with_the_hubs_checksums(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with hub(Hub("team/tiny", FILES, LARGE, token="hf_very-secret-token")) as running:
        monkeypatch.setenv("HF_ENDPOINT", running.url)
        monkeypatch.setenv("HF_TOKEN", "hf_very-secret-token")
        manifest = staged("hf://team/tiny@main", tmp_path)
        stored: Any = running.stored  # type: ignore[attr-defined]
    assert content(tmp_path) == FILES
    assert manifest.revision == "c" * 40
    assert {one.entry.checksum.algorithm for one in manifest.entries if one.entry.checksum} == {"sha256", "git-sha1"}
    assert "bytes=1000-1999" in stored.ranges
    # The token is the hub's; where a redirect leads it does not go.
    assert all("authorization" not in headers for _, _, headers in stored.asked)


def test_a_part_of_a_repository_and_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with hub(Hub("team/tiny", FILES, LARGE, refs=("v1.0",))) as running:
        monkeypatch.setenv("HF_ENDPOINT", running.url)
        staged("hf://team/tiny@v1.0/inner", tmp_path / "folder")
        staged("hf://team/tiny@v1.0/inner/model-00002.safetensors", tmp_path / "file")
    assert set(content(tmp_path / "folder")) == {"model-00001.safetensors", "model-00002.safetensors"}
    assert content(tmp_path / "file") == {"model-00002.safetensors": b"v" * 100}


@pytest.mark.parametrize(
    ("state", "source", "trouble"),
    [
        (Hub("team/tiny", FILES, token="right"), "hf://team/tiny", Trouble.DENIED),
        (Hub("team/tiny", FILES), "hf://team/tiny@nothing", Trouble.NOT_FOUND),
        (Hub("team/tiny", {"a": b"x"}, told={"a": "../../escaped"}), "hf://team/tiny", Trouble.BAD_NAME),
        (Hub("team/tiny", {"a": b"x"}, told={"a": "/etc/escaped"}), "hf://team/tiny", Trouble.BAD_NAME),
        (Hub("team/tiny", {"a": b"x"}, told={"a": ".kopt-staging/lock"}), "hf://team/tiny", Trouble.BAD_NAME),
        (Hub("team/tiny", {"a": b"x", "a/b": b"y"}), "hf://team/tiny", Trouble.BAD_NAME),
        (Hub("team/tiny", {"a": b"x"}, frozenset("a"), told={"oid:a": "0" * 64}), "hf://team/tiny", Trouble.CORRUPT),
        (Hub("team/tiny", {}), "hf://team/tiny", Trouble.EMPTY),
    ],
)
def test_a_hub_that_refuses_or_lies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: Hub, source: str, trouble: Trouble
) -> None:
    with hub(state) as running:
        monkeypatch.setenv("HF_ENDPOINT", running.url)
        with pytest.raises(StagingError) as caught:
            staged(source, tmp_path / "deep" / "copy", retry_s=0.5)
    assert caught.value.reason is trouble, caught.value
    assert content(tmp_path / "deep" / "copy") == {}
    assert [path.name for path in tmp_path.iterdir()] == ["deep"]


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A bare repository with two commits, a tag, an executable and a link."""
    work, bare = tmp_path / "work", tmp_path / "bare.git"
    work.mkdir()

    def git(*words: str) -> None:
        identity = ["-c", "user.name=t", "-c", "user.email=t@example.com", "-c", "init.defaultBranch=main"]
        subprocess.run(["git", *identity, *words], cwd=work, check=True, capture_output=True)

    git("init")
    (work / "run.sh").write_text("#!/bin/sh\n")
    (work / "run.sh").chmod(0o755)
    (work / "inner").mkdir()
    (work / "inner" / "ü data.txt").write_text("old")
    (work / "link").symlink_to("/etc/passwd")
    git("add", ".")
    git("commit", "-m", "one")
    git("tag", "v1")
    (work / "inner" / "ü data.txt").write_text("new")
    git("commit", "-am", "two")
    git("clone", "--bare", ".", str(bare))
    return bare


def test_a_branch_a_tag_and_a_commit_of_git(repository: Path, tmp_path: Path) -> None:
    manifest = staged(f"git+file://{repository}", tmp_path / "head")
    assert content(tmp_path / "head") == {"run.sh": b"#!/bin/sh\n", "inner/ü data.txt": b"new"}
    assert os.access(tmp_path / "head" / "run.sh", os.X_OK)
    assert manifest.notes == ("link is a link and is left out",)
    assert not (tmp_path / "head" / ".kopt-staging" / "git").exists()
    staged(f"git+file://{repository}@v1", tmp_path / "tag")
    assert content(tmp_path / "tag")["inner/ü data.txt"] == b"old"
    staged(f"git+file://{repository}@{manifest.revision}", tmp_path / "commit")
    assert content(tmp_path / "commit") == content(tmp_path / "head")
    assert run("--verify", tmp_path / "head").returncode == 0


def test_what_a_killed_fetch_left_is_no_hindrance(repository: Path, tmp_path: Path) -> None:
    left = tmp_path / "copy" / ".kopt-staging" / "git"
    left.mkdir(parents=True)
    (left / "shallow.lock").touch()
    staged(f"git+file://{repository}", tmp_path / "copy")
    assert len(content(tmp_path / "copy")) == 2


def test_repositories_and_refs_that_are_not_there(repository: Path, tmp_path: Path) -> None:
    for source in (f"git+file://{repository}@nothing", f"git+file://{repository}-not"):
        with pytest.raises(StagingError) as caught:
            staged(source, tmp_path / "copy")
        assert caught.value.reason is Trouble.NOT_FOUND


def test_files_that_only_point_to_large_ones_are_refused(tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    digest = hashlib.sha256(b"").hexdigest()
    (work / "model.bin").write_text(f"version https://git-lfs.github.com/spec/v1\noid sha256:{digest}\nsize 9\n")
    for words in (["init"], ["add", "."], ["-c", "user.name=t", "-c", "user.email=t@e", "commit", "-m", "one"]):
        subprocess.run(["git", *words], cwd=work, check=True, capture_output=True)
    with pytest.raises(StagingError, match=r"'model.bin' .* Git LFS"):
        staged(f"git+file://{work}", tmp_path / "copy")


def test_digits_in_a_path_are_no_http_status(repository: Path, tmp_path: Path) -> None:
    """What chance found once: a folder whose name ended in 403."""
    with pytest.raises(StagingError) as caught:
        staged(f"git+file://{repository.parent}/401/403.git", tmp_path / "copy")
    assert caught.value.reason is Trouble.NOT_FOUND


@pytest.mark.parametrize(("status", "trouble"), [(403, Trouble.DENIED), (404, Trouble.NOT_FOUND)])
def test_statuses_of_a_git_server(tmp_path: Path, status: int, trouble: Trouble) -> None:
    class Refusing(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_error(status)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Refusing) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        try:
            with pytest.raises(StagingError) as caught:
                staged(f"git+http://127.0.0.1:{server.server_port}/team/code.git", tmp_path / "copy", retry_s=0.5)
        finally:
            server.shutdown()
    assert caught.value.reason is trouble, caught.value
