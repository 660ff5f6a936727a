"""MLflow reads and writes files for whoever asks: nothing without the home's secret, with it what is its own."""

import base64
import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from controlplane.processes import free_port

from kopt.cli.local.up import services
from kopt.core.settings import Settings
from kopt.core.signing_keys import signing_key
from kopt.models.registry.mlflow import connect
from tests.attacks.conftest import Reply, Stranger

pytestmark = [pytest.mark.services, pytest.mark.slow, pytest.mark.timeout(600)]
BOTH = ("/api/2.0/mlflow", "/ajax-api/2.0/mlflow")


@dataclass(frozen=True)
class Server:
    """MLflow as ``kopt up`` starts it, on a home with a signing key and a run of its own."""

    settings: Settings
    run: str

    @property
    def key(self) -> Path:
        return self.settings.keys / "signing.key"

    @property
    def secret(self) -> dict[str, str]:
        token = (self.settings.keys / "mlflow.token").read_text().strip()
        return {"Authorization": f"Bearer {token}"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("somebody")
    settings = Settings(folder / "home", api_port=0, pages_port=0, mlflow_port=free_port())
    signing_key(settings.keys)
    client = connect(settings)
    location = (settings.artifacts / "own").as_uri()
    run = client.create_run(client.create_experiment("own", artifact_location=location)).info.run_id
    client.log_text(run, "a curve", "plots/curve.txt")
    (service,) = [each for each in services(settings, train=False, on_line=print) if each.name == "mlflow"]
    with service_process(service, folder / "log"):
        yield Server(settings, run)


@contextlib.contextmanager
def service_process(service: Any, log: Path) -> Iterator[None]:
    with log.open("w") as out:
        process = subprocess.Popen(
            service.command, env={**os.environ, **service.environ}, stdout=out, stderr=out, start_new_session=True
        )
    visitor = Stranger()
    try:
        port, deadline = int(service.ready_url.split(":")[2].split("/")[0]), time.monotonic() + 300
        while visitor.request("GET", "127.0.0.1", port, "/health").status != 200:
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.2)
        yield
    finally:
        visitor.leave()
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


class Attacker:
    """Somebody who knows MLflow's API; ``secret`` is empty for a stranger."""

    def __init__(self, server: Server, stranger: Stranger, secret: dict[str, str]) -> None:
        self._server, self._stranger, self._secret = server, stranger, secret

    def ask(self, method: str, path: str, body: object = None, headers: dict[str, str] | None = None) -> Reply:
        port = self._server.settings.mlflow_port
        return self._stranger.request(method, "127.0.0.1", port, path, body, {**self._secret, **(headers or {})})

    def run_at(self, location: str, api: str) -> str:
        """A run of a new experiment whose artifacts lie there; empty where that is refused."""
        body = {"name": f"{location} {api} {time.monotonic_ns()}", "artifact_location": location}
        experiment = self.ask("POST", f"{api}/experiments/create", body)
        if experiment.status != 200:
            assert experiment.status in (401, 403), experiment
            return ""
        run = self.ask("POST", f"{api}/runs/create", {"experiment_id": experiment.json["experiment_id"]})
        return str(run.json["run"]["info"]["run_id"])

    def version_at(self, source: str, api: str) -> Reply:
        name = f"model-{time.monotonic_ns()}"
        self.ask("POST", f"{api}/registered-models/create", {"name": name})
        made = self.ask("POST", f"{api}/model-versions/create", {"name": name, "source": source, "run_id": ""})
        if made.status != 200:
            return made
        return self.ask("GET", f"/model-versions/get-artifact?name={name}&version=1&path=signing.key")


@pytest.fixture(params=["a stranger", "who has the secret"])
def attacker(request: pytest.FixtureRequest, server: Server, stranger: Stranger) -> Attacker:
    return Attacker(server, stranger, {} if request.param == "a stranger" else server.secret)


@pytest.fixture
def linked(tmp_path: Path, server: Server) -> Path:
    """A folder of the attacker's with links into the home and to the machine's secrets."""
    place = tmp_path / "mine"
    place.mkdir()
    (place / "keys").symlink_to(server.settings.keys)
    (place / "etc").symlink_to("/etc")
    return place


def _lead_artifacts_to(target: Path, place: Path, run: str) -> None:
    """The attacker owns the place, so he says what a run's artifacts are."""
    (place / run).mkdir()
    (place / run / "artifacts").symlink_to(target)


@pytest.mark.parametrize("api", BOTH)
def test_no_file_is_read_through_an_experiment_with_a_place_of_its_own(
    attacker: Attacker, server: Server, linked: Path, api: str
) -> None:
    keys, root = server.settings.keys, server.settings.artifacts
    places = (
        linked.as_uri(),
        keys.as_uri(),
        str(keys),
        "file:///etc",
        f"{root.as_uri()}/../keys",
        f"{root.as_uri()}/%2e%2e/keys",
        f"file://localhost{keys}",
    )
    for place in places:
        run = attacker.run_at(place, api)
        if run and place == linked.as_uri():
            _lead_artifacts_to(keys, linked, run)
        for path in ("signing.key", "keys/signing.key", "etc/passwd", "passwd", "../keys/signing.key"):
            reply = attacker.ask("GET", f"/get-artifact?run_id={run or server.run}&path={path}")
            assert reply.status != 200, (place, path, reply)
        listing = attacker.ask("GET", f"{api}/artifacts/list?run_id={run or server.run}&path=../../keys")
        assert listing.status != 200, (place, listing)
        assert not run, f"a run writes to {place}"


def test_nothing_is_uploaded_next_to_the_trusted_keys(attacker: Attacker, server: Server) -> None:
    before = sorted(server.settings.home.rglob("*.pub"))
    for api in BOTH:
        run = attacker.run_at(server.settings.keys.as_uri(), api) or server.run
        for path in ("evil.pub", "../keys/evil.pub", "../../keys/evil.pub", "evil/evil.pub"):
            reply = attacker.ask("POST", f"/ajax-api/2.0/mlflow/upload-artifact?run_uuid={run}&path={path}", "a key")
            assert reply.status in (401, 403), reply
    for prefix, path in product(("/api", "/ajax-api"), ("evil.pub", "../keys/evil.pub", "%2e%2e/keys/evil.pub")):
        reply = attacker.ask("PUT", f"{prefix}/2.0/mlflow-artifacts/artifacts/{path}", "a key")
        assert reply.status in (401, 403), reply
        assert attacker.ask("GET", f"{prefix}/2.0/mlflow-artifacts/artifacts/{path}").status in (401, 403)
    assert sorted(server.settings.home.rglob("*.pub")) == before


@pytest.mark.parametrize("api", BOTH)
def test_no_file_is_read_through_a_models_source(attacker: Attacker, server: Server, linked: Path, api: str) -> None:
    keys = server.settings.keys
    for source in (keys.as_uri(), str(keys), (linked / "keys").as_uri(), f"{server.settings.artifacts}/../keys"):
        reply = attacker.version_at(source, api)
        assert reply.status in (400, 401, 403), (source, reply)
        assert "PRIVATE KEY" not in reply.body


def test_places_that_were_made_before_are_refused_too(server: Server, stranger: Stranger, linked: Path) -> None:
    client, attacker = connect(server.settings), Attacker(server, stranger, server.secret)
    for number, place in enumerate((server.settings.keys.as_uri(), linked.as_uri())):
        experiment = client.create_experiment(f"old {number} {time.monotonic_ns()}", artifact_location=place)
        run = client.create_run(experiment)
        if place == linked.as_uri():
            _lead_artifacts_to(server.settings.keys, linked, run.info.run_id)
        for wanted in ("signing.key", "../../signing.key", "keys/signing.key"):
            reply = attacker.ask("GET", f"/get-artifact?run_id={run.info.run_id}&path={wanted}")
            assert reply.status in (400, 403), reply
        listing = attacker.ask("GET", f"/api/2.0/mlflow/artifacts/list?run_id={run.info.run_id}")
        assert listing.status == 403, listing


def test_links_below_the_own_artifacts_are_not_followed(server: Server, stranger: Stranger) -> None:
    attacker = Attacker(server, stranger, server.secret)
    folder = server.settings.artifacts / "own" / server.run / "artifacts"
    (folder / "link").symlink_to(server.settings.keys)
    try:
        assert attacker.ask("GET", f"/get-artifact?run_id={server.run}&path=link/signing.key").status in (400, 403)
        listing = attacker.ask("GET", f"/api/2.0/mlflow/artifacts/list?run_id={server.run}&path=link")
        assert "signing.key" not in listing.body
    finally:
        (folder / "link").unlink()


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/ajax-api/3.0/mlflow/assistant/message"),
        ("PUT", "/ajax-api/3.0/mlflow/assistant/config"),
        ("POST", "/ajax-api/3.0/jobs"),
        ("POST", "/api/2.0/mlflow/webhooks"),
        ("POST", "/ajax-api/2.0/mlflow/webhooks"),
        ("POST", "/api/3.0/mlflow/gateway/endpoints/create"),
        ("POST", "/ajax-api/2.0/mlflow/gateway-proxy"),
        ("POST", "/api/3.0/mlflow/scorers/register"),
        ("POST", "/ajax-api/3.0/mlflow/scorer/invoke"),
        ("POST", "/ajax-api/2.0/mlflow/runs/create-promptlab-run"),
        ("POST", "/gateway/x/mlflow/invocations"),
        ("POST", "/api/2.0/mlflow/artifacts/presigned-upload-url"),
        ("POST", "/v1/traces"),
        ("GET", "//get-artifact"),
        ("DELETE", "/api/2.0/mlflow-artifacts/artifacts/own"),
    ],
)
def test_routes_that_run_call_or_write_are_served_to_nobody(attacker: Attacker, method: str, path: str) -> None:
    assert attacker.ask(method, path, {}).status in (401, 403)


def test_only_health_answers_without_the_secret(server: Server, stranger: Stranger) -> None:
    guesses = (
        {},
        {"Authorization": "Bearer wrong"},
        {"Authorization": "Bearer "},
        {"Authorization": "Basic a29wdDo="},
        {"Authorization": "Basic %%%"},
        {"Authorization": "Basic " + base64.b64encode(b"kopt:x").decode()},
        {"Cookie": "token=x"},
    )
    for guess in guesses:
        visitor = Attacker(server, stranger, guess)
        for path in (
            "/",
            "/version",
            "/api/2.0/mlflow/experiments/search?max_results=1",
            "/graphql",
            f"/get-artifact?run_id={server.run}&path=plots/curve.txt",
        ):
            reply = visitor.ask("GET", path)
            assert reply.status == 401, (guess, path, reply)
            assert "Basic" in {name.lower(): value for name, value in reply.headers.items()}["www-authenticate"]


def test_a_foreign_page_in_the_owners_browser_gets_nothing(server: Server, stranger: Stranger) -> None:
    port, search = server.settings.mlflow_port, "/ajax-api/2.0/mlflow/experiments/search?max_results=1"
    owner = Attacker(server, stranger, server.secret)
    foreign: tuple[dict[str, str], ...] = (
        {"Host": "evil.example"},
        {"Host": f"evil.example:{port}"},
        {"Origin": "http://evil.example"},
        {"Origin": f"http://127.0.0.1:{port + 1}"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    )
    for headers in foreign:
        assert owner.ask("GET", search, None, headers).status in (403, 421), headers
        assert owner.ask("POST", f"{BOTH[0]}/experiments/create", {"name": "x"}, headers).status in (403, 421), headers
    assert owner.ask("GET", search, None, {"Sec-Fetch-Site": "same-origin"}).status == 200


def test_the_owner_sees_and_works_as_ever(server: Server, stranger: Stranger, monkeypatch: pytest.MonkeyPatch) -> None:
    from mlflow.tracking import MlflowClient

    token = server.secret["Authorization"].removeprefix("Bearer ")
    basic = {"Authorization": "Basic " + base64.b64encode(f"kopt:{token}".encode()).decode()}
    for credentials in (server.secret, basic):
        owner = Attacker(server, stranger, credentials)
        link = {"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "navigate"}
        page = owner.ask("GET", "/", None, link)
        assert page.status == 200
        script = next(part.split('"')[0] for part in page.body.split('src="')[1:] if "static-files" in part)
        assert owner.ask("GET", "/" + script.lstrip("./")).status == 200
        curve = owner.ask("GET", f"/get-artifact?run_id={server.run}&path=plots/curve.txt")
        assert (curve.status, curve.body) == (200, "a curve")
    uri = f"http://127.0.0.1:{server.settings.mlflow_port}"
    for variables in (
        {"MLFLOW_TRACKING_TOKEN": token},
        {"MLFLOW_TRACKING_USERNAME": "me", "MLFLOW_TRACKING_PASSWORD": token},
    ):
        with monkeypatch.context() as environment:
            for name, value in variables.items():
                environment.setenv(name, value)
            client = MlflowClient(uri, uri)
            run = client.create_run(client.create_experiment(f"mine {time.monotonic_ns()}")).info.run_id
            client.log_metric(run, "mase", 0.5)
            client.log_text(run, "text", "note.txt")
            assert client.get_run(run).data.metrics == {"mase": 0.5}
            assert [info.path for info in client.list_artifacts(run)] == ["note.txt"]
            assert owner.ask("GET", f"/get-artifact?run_id={run}&path=note.txt").body == "text"
