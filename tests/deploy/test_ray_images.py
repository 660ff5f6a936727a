"""The images with Ray, from the Dockerfile's own commands (``built_images``): the endpoint of the chart's RayService
answers, the pages start, and a training job of the chart registers what it has trained."""

import secrets
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
import yaml
from chart import NAMESPACE, Helm
from controlplane.api import kubeconfig
from controlplane.kubelet.network import PodSandbox
from controlplane.processes import free_port
from cryptography.fernet import Fernet
from deploy.built_images import LACKING, Image, image_builder

from kopt.core.settings import Settings
from kopt.core.signing_keys import signing_key
from kopt.data.demand.files import write_demand
from kopt.data.demand.generator import generate
from kopt.models.registry.aliases import SHIPPED
from kopt.models.registry.registry import Registry
from kopt.serving.base.local_ray import authentication
from tests.deploy.test_training_jobs import CRON_JOB, values_of
from tests.models.team_mlflow_server import TeamMlflow
from tests.serving.conftest import history, wave

pytestmark = [
    pytest.mark.ray,
    pytest.mark.services,
    pytest.mark.cluster,
    pytest.mark.slow,
    pytest.mark.long,
    pytest.mark.timeout(5400),
]
Object = dict[str, Any]
STARTS_WITHIN_S, TRAINS_WITHIN_S, ENDS_WITHIN_S = 600.0, 1800.0, 60.0
APPLICATIONS = "/api/serve/applications/"
"""Where the operator brings ``serveConfigV2``."""


class Started:
    """A container's first process, and all that it starts, in a folder with a short path: those of Unix sockets have
    107 bytes at most. ``again``: one that ends is started anew, as the kubelet does in pods that are to run on."""

    def __init__(self, image: Image, command: list[str], env: dict[str, str], folder: Path, again: bool) -> None:
        self._start = lambda: image.start(command, env, folder / "log")
        self._folder, self._again = folder, again
        self.process = self._preferred()

    @property
    def log(self) -> str:
        return (self._folder / "log").read_text(errors="replace")

    def wait_answer(self, ask: Callable[[], httpx.Response]) -> None:
        """Asks until the answer is no error."""
        end_s, last = time.monotonic() + STARTS_WITHIN_S, ""
        while True:
            try:
                answer = ask()
                if answer.is_success:
                    return
                last = f"{answer.status_code} {answer.text[:1000]}"
            except httpx.HTTPError as error:
                last = repr(error)
            assert time.monotonic() < end_s, f"{last}\n{self.log[-3000:]}"
            self._restart_if_ended()
            time.sleep(1)

    def stop(self) -> None:
        """SIGTERM to the first process, as runtimes do: nothing may be left of it."""
        self.process.terminate()
        self.process.wait(ENDS_WITHIN_S)
        _, left = psutil.wait_procs(self._family(), ENDS_WITHIN_S)
        assert not left, left

    def kill(self) -> None:
        """SIGKILL to whatever is left, as when the namespace of its processes ends."""
        while family := self._family():
            for one in family:
                with suppress(psutil.NoSuchProcess):
                    one.kill()
            psutil.wait_procs(family, 10)
        self.process.wait()

    def _restart_if_ended(self) -> None:
        """Starts it anew where it ended, or fails with what it printed."""
        if self.process.poll() is not None:
            assert self._again, self.log[-3000:]
            self.kill()
            self.process = self._preferred()

    def _preferred(self) -> "subprocess.Popen[bytes]":
        process = self._start()
        # Ray gives its agents fifteen seconds to start, and our pods ask for a whole CPU.
        PodSandbox.prefer(process.pid)
        return process

    def _family(self) -> list[psutil.Process]:
        """Those that have its home, in whichever session."""
        return [one for one in psutil.process_iter() if _home(one) == str(self._folder)]


def _home(process: psutil.Process) -> str:
    try:
        return process.environ().get("HOME", "")
    except psutil.Error:
        return ""


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Image]]:
    """``image(extra)``: what its image holds; gigabytes, which do not outlast the tests."""
    folder = tmp_path_factory.mktemp("image")
    yield image_builder(folder)
    shutil.rmtree(folder)


@pytest.fixture
def start() -> Iterator[Callable[..., Started]]:
    """``start(image, command, env, folder)``: what it started is gone after the test."""
    with ExitStack() as ends:

        def started(image: Image, command: list[str], env: dict[str, str], folder: Path, again: bool = True) -> Started:
            one = Started(image, command, env, folder, again)
            ends.callback(one.kill)
            return one

        yield started


@pytest.fixture
def short() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="kopt", dir="/tmp", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


def _variables(container: Object, **values: str) -> dict[str, str]:
    """Those that the chart sets by value, with what a pod has instead of the ``values``."""
    usual = {"POD_NAME": "pod", "POD_NAMESPACE": NAMESPACE, "POD_IP": "127.0.0.1"}
    return usual | {one["name"]: one["value"] for one in container.get("env", ()) if "value" in one} | values


def _head(cluster: Object, **instead: str) -> list[str]:
    """KubeRay's command of the head, with what a machine that is shared has ``instead``: addresses, ports, CPUs."""
    options = cluster["headGroupSpec"]["rayStartParams"] | {
        name.replace("_", "-"): value for name, value in instead.items()
    }
    return ["ray", "start", "--head", "--block", *(f"--{name}={value}" for name, value in options.items())]


def _only(objects: list[Object], kind: str, name: str) -> Object:
    (only,) = [one for one in objects if (one["kind"], one["metadata"]["name"]) == (kind, name)]
    return only


def test_the_serving_image_answers_and_shows_the_pages(
    image: Callable[[str], Image], charts: Helm, short: Path, start: Callable[..., Started]
) -> None:
    """With one worker and no MLflow, which is all that the chart needs; the one node is head and worker."""
    values = {
        "predictions": {"deploy": True, "workers": 1, "auth": "none"},
        "pages": {"enabled": True, "url": "http://127.0.0.1"},
    }
    objects = charts.render(values)
    service = _only(objects, "RayService", "kopt-predictions")["spec"]
    cluster = service["rayClusterConfig"]
    (worker,) = cluster["workerGroupSpecs"][0]["template"]["spec"]["containers"]
    serving, token, (port, dashboard) = image("serving"), secrets.token_hex(32), (free_port(), free_port())
    command = _head(
        cluster,
        num_cpus="2",
        dashboard_host="127.0.0.1",
        dashboard_port=str(dashboard),
        port=str(free_port()),
        ray_client_server_port=str(free_port()),
        dashboard_agent_listen_port=str(free_port()),
        min_worker_port="0",
        max_worker_port="0",
        temp_dir=str(short),
    )
    head = start(serving, command, _variables(worker, KOPT_API_HOST="127.0.0.1") | authentication(token), short)
    config = yaml.safe_load(service["serveConfigV2"])
    config["http_options"] |= {"host": "127.0.0.1", "port": port}
    applications, url = f"http://127.0.0.1:{dashboard}{APPLICATIONS}", f"http://127.0.0.1:{port}"
    bearer = {"Authorization": f"Bearer {token}"}
    # It is answered once the head has joined itself.
    head.wait_answer(lambda: httpx.put(applications, json=config, headers=bearer, timeout=300, trust_env=False))
    assert httpx.get(applications, trust_env=False).status_code == 401
    head.wait_answer(lambda: httpx.get(f"{url}/readyz", timeout=10, trust_env=False))
    answer = httpx.post(f"{url}/v1/demand", json={"series": [{**history(wave(700)), "name": "chat"}]}, timeout=60)
    assert answer.status_code == 200, answer.text
    document = answer.json()
    assert (document["fallback"], document["model"]["version"]) == (False, SHIPPED)
    assert document["series"][0]["horizons"][0]["demand"]["value"] > 0

    _assert_pages_start(serving, _only(objects, "Deployment", "kopt-pages"), url, short / "pages", start)
    assert head.process.poll() is None
    head.stop()
    assert not LACKING.search(head.log)


def _assert_pages_start(
    serving: Image, deployment: Object, url: str, folder: Path, start: Callable[..., Started]
) -> None:
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    folder.mkdir()
    key, port = folder / "key", free_port()
    key.write_bytes(Fernet.generate_key())
    nowhere = kubeconfig(folder / "kubeconfig", "https://127.0.0.1:1", Path(__file__), {"token": "none"})
    env = _variables(
        container,
        KUBECONFIG=str(nowhere),
        KOPT_API_HOST="127.0.0.1",
        KOPT_PAGES_PORT=str(port),
        KOPT_PAGES_SESSION_KEY_FILE=str(key),
        KOPT_URL=url,
    )
    pages = start(serving, container["command"], env, folder, again=False)
    pages.wait_answer(lambda: httpx.get(f"http://127.0.0.1:{port}/login", timeout=10, trust_env=False))
    pages.stop()
    assert not LACKING.search(pages.log)


@pytest.fixture
def mlflow(tmp_path: Path) -> Iterator[TeamMlflow]:
    running = TeamMlflow(tmp_path, (tmp_path / "store").as_uri())
    yield running
    running.stop()


def test_the_training_image_registers_what_it_has_trained(
    image: Callable[[str], Image],
    charts: Helm,
    mlflow: TeamMlflow,
    short: Path,
    start: Callable[..., Started],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cron_job = _only(charts.render(values_of(mlflow.url)), "CronJob", CRON_JOB)
    (container,) = cron_job["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"]
    write_demand(generate(1, 3.0, seed=1), short / "requests")
    signing_key(short / "keys")
    arguments = [one.replace("/data/", f"{short}/") for one in container["args"]]
    env = _variables(container, MLFLOW_TRACKING_TOKEN=mlflow.secret)
    job = start(image("training"), ["kopt", *arguments], env, short, again=False)
    assert job.process.wait(TRAINS_WITHIN_S) == 0, job.log[-3000:]
    assert not LACKING.search(job.log)

    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", mlflow.secret)
    reader = Settings(home=short / "reader", mlflow_uri=mlflow.url)
    reader.keys.mkdir(parents=True)
    shutil.copy(short / "keys" / "signing.pub", reader.keys / "team.pub")
    registry = Registry(reader)
    newest = registry.list("demand")[0]
    assert newest.tags["dataset"] == "requests"
    assert f"demand version {newest.version} is challenger" in job.log
    # Fetched from MLflow, and signed by the key that the job had.
    assert registry.load("demand", newest.version).version.version == newest.version
