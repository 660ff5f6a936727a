"""The doctor finds what was broken on purpose and says how to repair it."""

import os
import socket
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from postgres_server import PostgresServer, postgres

from kopt.cli.local import checks, state
from kopt.cli.local.checks import CHECKS, Finding, Severity
from kopt.cli.local.listening import rays_of_ours
from kopt.core.settings import Settings
from tests.cli.conftest import Kopt

__all__ = ["postgres"]


def settings(home: Path, **more: object) -> Settings:
    return Settings(home, api_port=0, pages_port=0, mlflow_port=0, **more)  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def only_this_test(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other tests of this user may run a Ray beside."""
    monkeypatch.setattr(checks, "rays_of_ours", lambda: rays_of_ours() & {os.getpid()})


def broken(finding: Finding) -> bool:
    return finding.verdict == Severity.BROKEN and bool(finding.fix)


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
        assert checks.ports(Settings(tmp_path), {}).verdict == Severity.OK


def test_a_key_that_others_read_is_found(tmp_path: Path) -> None:
    key = tmp_path / "keys" / "signing.key"
    key.parent.mkdir()
    key.write_text("secret")
    key.chmod(0o644)
    finding = checks.keys(settings(tmp_path), {})
    assert broken(finding)
    assert f"chmod 600 {key}" in finding.fix
    key.chmod(0o600)
    assert checks.keys(settings(tmp_path), {}).verdict == Severity.OK


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
    assert checks.registry(settings(tmp_path), {}).verdict == Severity.OK


def test_a_store_that_does_not_answer_is_found_without_telling_its_password(tmp_path: Path) -> None:
    port = checks.free_port("127.0.0.1")
    finding = checks.online_store(settings(tmp_path, redis_url=f"redis://me:hunter2@127.0.0.1:{port}/0"), {})
    assert broken(finding)
    assert "hunter2" not in finding.detail + finding.fix
    with socket.socket() as store:
        store.bind(("127.0.0.1", port))
        store.listen()
        assert checks.online_store(settings(tmp_path, redis_url=f"redis://127.0.0.1:{port}"), {}).verdict == Severity.OK


def test_a_database_that_does_not_answer_is_reported_without_its_password(tmp_path: Path) -> None:
    port = checks.free_port("127.0.0.1")
    url = f"postgresql://me:hunter2@127.0.0.1:{port}/kopt"
    finding = checks.shared_state(settings(tmp_path, database_url=url), {})
    assert broken(finding)
    assert "KOPT_DATABASE_URL" in finding.fix
    assert "hunter2" not in finding.detail + finding.fix


@pytest.mark.services
def test_a_database_that_answers_is_fine(tmp_path: Path, postgres: PostgresServer) -> None:
    url = postgres.new_database()
    assert checks.shared_state(settings(tmp_path, database_url=url), {}).verdict == Severity.OK
    assert broken(checks.shared_state(settings(tmp_path, database_url=url + "_absent"), {}))


def test_ray_beyond_this_machine_needs_a_token(tmp_path: Path) -> None:
    beyond = settings(tmp_path, ray_address="ray://head:10001")
    assert broken(checks.ray_authentication(beyond, {}))
    assert checks.ray_authentication(beyond, {"RAY_AUTH_MODE": "token"}).verdict == Severity.OK


def test_too_little_disk_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "NEEDED_DISK_BYTES", 1 << 60)
    assert broken(checks.disk(settings(tmp_path), {}))


def test_servers_beyond_loopback_are_noted(tmp_path: Path) -> None:
    assert checks.exposure(Settings(tmp_path, api_host="0.0.0.0"), {}).verdict == Severity.NOTICE


def test_the_verb_ends_with_1_when_something_is_broken(kopt: Kopt, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KOPT_HOEM", "x")
    done = kopt("doctor", "-o", "json")
    assert done.status == 1
    (finding,) = [one for one in done.json["findings"] if one["check"] == "environment"]
    assert finding["verdict"] == "broken"
    assert "KOPT_HOME" in finding["fix"]
    assert done.json["healthy"] is False


def test_a_home_that_others_read_is_noted_with_a_way_out(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    finding = checks.home(settings(tmp_path), {})
    assert finding.verdict == Severity.NOTICE
    assert f"chmod go-rwx {tmp_path}" in finding.fix


LISTENING = """
import http.server, socket, sys
class Answers(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response({"/metrics": 200}.get(self.path, 404) if sys.argv[1] == "metrics" else int(sys.argv[1]))
        self.end_headers()
    def log_message(self, *_): pass
server = http.server.HTTPServer((sys.argv[2], 0), Answers)
print(server.server_address[1], flush=True)
server.serve_forever()
"""


@pytest.mark.parametrize(
    ("answer", "address", "verdict", "words"),
    [
        ("401", "127.0.0.1", Severity.OK, "ray 1 on 127.0.0.1 (asks for a secret)"),
        ("metrics", "127.0.0.1", Severity.OK, "metrics 1 on 127.0.0.1 (open to every user of this machine)"),
        ("404", "127.0.0.1", Severity.BROKEN, "ray 1 on 127.0.0.1 (open to every user of this machine)"),
        ("401", "0.0.0.0", Severity.BROKEN, "ray 1 on 0.0.0.0 (asks for a secret)"),
    ],
)
def test_the_doctor_says_what_listens_and_what_asks(
    tmp_path: Path, answer: str, address: str, verdict: Severity, words: str
) -> None:
    with (
        state.hold(tmp_path),
        subprocess.Popen([sys.executable, "-c", LISTENING, answer, address], stdout=subprocess.PIPE) as process,
    ):
        assert process.stdout is not None
        process.stdout.readline()
        state.write(tmp_path, state.Running(process.pid, "http://a:1", "http://b:2", "http://c:3"))
        finding = checks.listening(Settings(tmp_path), {})
        process.kill()
    assert (finding.verdict, finding.detail) == (verdict, words)
    assert bool(finding.fix) == (verdict == Severity.BROKEN)


def test_the_doctor_knows_the_ports_that_have_a_name(tmp_path: Path) -> None:
    with (
        state.hold(tmp_path),
        subprocess.Popen([sys.executable, "-c", LISTENING, "401", "127.0.0.1"], stdout=subprocess.PIPE) as process,
    ):
        assert process.stdout is not None
        port = int(process.stdout.readline())
        state.write(tmp_path, state.Running(process.pid, "http://a:1", "http://b:2", f"http://127.0.0.1:{port}"))
        finding = checks.listening(Settings(tmp_path), {})
        process.kill()
    assert finding.detail == f"mlflow 127.0.0.1:{port} (asks for a secret)"


@pytest.mark.parametrize(
    ("address", "of_this_shell", "verdict"),
    [("0.0.0.0", "127.0.0.1", Severity.NOTICE), ("127.0.0.1", "0.0.0.0", Severity.OK)],
)
def test_exposure_is_what_runs_and_not_what_this_shell_would_start(
    tmp_path: Path, address: str, of_this_shell: str, verdict: Severity
) -> None:
    with (
        state.hold(tmp_path),
        subprocess.Popen([sys.executable, "-c", LISTENING, "401", address], stdout=subprocess.PIPE) as process,
    ):
        assert process.stdout is not None
        port = int(process.stdout.readline())
        state.write(tmp_path, state.Running(process.pid, "http://a:1", "http://b:2", f"http://127.0.0.1:{port}"))
        finding = checks.exposure(Settings(tmp_path, api_host=of_this_shell), {})
        process.kill()
    assert finding.verdict == verdict
    assert (f"mlflow {address}:{port}" in finding.detail) == (verdict == Severity.NOTICE)


@pytest.mark.parametrize(("answer", "verdict"), [("401", Severity.OK), ("404", Severity.BROKEN)])
def test_the_ray_of_a_training_is_looked_at(tmp_path: Path, answer: str, verdict: Severity) -> None:
    raylet = tmp_path / "raylet"
    raylet.symlink_to(Path(sys.executable).resolve())
    command = [raylet, "-c", LISTENING, answer, "127.0.0.1", f"--temp_dir={tmp_path}/kopt-ray-abc"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        listening, ray = (look(Settings(tmp_path), {}) for look in (checks.listening, checks.ray_authentication))
        process.kill()
    assert "ray 1 on 127.0.0.1" in listening.detail
    assert (listening.verdict, ray.verdict) == (verdict, verdict)
    assert ("no token" in ray.detail) == (verdict == Severity.BROKEN)
