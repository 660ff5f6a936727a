"""The doctor finds what was broken on purpose and says how to repair it."""

import socket
import sqlite3
from pathlib import Path

import pytest

from kopt.cli import checks, state
from kopt.cli.checks import CHECKS, Finding, Verdict
from kopt.core.settings import Settings
from tests.cli.conftest import Kopt


def settings(home: Path, **more: object) -> Settings:
    return Settings(home, api_port=0, pages_port=0, mlflow_port=0, **more)  # type: ignore[arg-type]


def broken(finding: Finding) -> bool:
    return finding.verdict == Verdict.BROKEN and bool(finding.fix)


def test_every_check_answers_on_an_empty_home_and_changes_nothing(tmp_path: Path) -> None:
    home = tmp_path / "home"
    findings = {check.__name__: check(settings(home), {}) for check in CHECKS}
    # Whether a default model is shipped is no matter of this machine.
    assert not [one for name, one in findings.items() if broken(one) and name != "champion"]
    assert not home.exists()


def test_a_misspelt_name_is_found_with_the_right_one(tmp_path: Path) -> None:
    finding = checks.environment(settings(tmp_path), {"KOPT_API_PROT": "1", "KOPT_HOME": "x"})
    assert broken(finding)
    assert "KOPT_API_PORT" in finding.fix


def test_a_taken_port_is_found(tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        finding = checks.ports(Settings(tmp_path, api_port=port, pages_port=0, mlflow_port=0), {})
    assert broken(finding)
    assert str(port) in finding.detail
    assert "KOPT_API_PORT" in finding.fix


def test_ports_of_the_running_platform_are_no_fault(tmp_path: Path) -> None:
    with state.hold(tmp_path):
        state.write(tmp_path, state.Running(1, "http://a", "http://b", "http://c"))
        assert checks.ports(Settings(tmp_path), {}).verdict == Verdict.OK


def test_a_key_that_others_read_is_found(tmp_path: Path) -> None:
    key = tmp_path / "keys" / "signing.key"
    key.parent.mkdir()
    key.write_text("secret")
    key.chmod(0o644)
    finding = checks.keys(settings(tmp_path), {})
    assert broken(finding)
    assert f"chmod 600 {key}" in finding.fix
    key.chmod(0o600)
    assert checks.keys(settings(tmp_path), {}).verdict == Verdict.OK


def test_a_home_that_others_write_or_that_is_a_file_is_found(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    assert broken(checks.home(settings(tmp_path), {}))
    file = tmp_path / "file"
    file.touch()
    assert broken(checks.home(settings(file), {}))
    assert broken(checks.home(settings(file / "below"), {}))


def test_a_damaged_registry_is_found(tmp_path: Path) -> None:
    (tmp_path / "mlflow.db").write_bytes(b"SQLite format 3\0" + bytes(5000))
    assert broken(checks.registry(settings(tmp_path), {}))
    (tmp_path / "mlflow.db").unlink()
    sqlite3.connect(tmp_path / "mlflow.db").execute("create table t (x)").connection.close()
    assert checks.registry(settings(tmp_path), {}).verdict == Verdict.OK


def test_a_store_that_does_not_answer_is_found_without_telling_its_password(tmp_path: Path) -> None:
    port = checks.free_port("127.0.0.1")
    finding = checks.online_store(settings(tmp_path, redis_url=f"redis://me:hunter2@127.0.0.1:{port}/0"), {})
    assert broken(finding)
    assert "hunter2" not in finding.detail + finding.fix
    with socket.socket() as store:
        store.bind(("127.0.0.1", port))
        store.listen()
        assert checks.online_store(settings(tmp_path, redis_url=f"redis://127.0.0.1:{port}"), {}).verdict == Verdict.OK


def test_ray_beyond_this_machine_needs_a_token(tmp_path: Path) -> None:
    beyond = settings(tmp_path, ray_address="ray://head:10001")
    assert broken(checks.ray_authentication(beyond, {}))
    assert checks.ray_authentication(beyond, {"RAY_AUTH_MODE": "token"}).verdict == Verdict.OK


def test_too_little_disk_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "NEEDED_DISK_BYTES", 1 << 60)
    assert broken(checks.disk(settings(tmp_path), {}))


def test_servers_beyond_loopback_are_noted(tmp_path: Path) -> None:
    assert checks.exposure(Settings(tmp_path, api_host="0.0.0.0"), {}).verdict == Verdict.NOTE


def test_the_verb_ends_with_1_when_something_is_broken(kopt: Kopt, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KOPT_HOEM", "x")
    done = kopt("doctor", "-o", "json")
    assert done.status == 1
    (finding,) = [one for one in done.json["findings"] if one["check"] == "environment"]
    assert finding["verdict"] == "broken"
    assert "KOPT_HOME" in finding["fix"]
    assert done.json["healthy"] is False
