"""The images with Ray, from the Dockerfile's own commands (``built_images``): the endpoint of the chart's RayService
answers, the pages start, and a training job of the chart registers what it trained."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from chart import NAMESPACE, Helm
from controlplane.processes import free_port
from deploy.built_images import LACKING, Image, image_builder

from kopt.data.demand.files import write_demand
from kopt.data.demand.generator import generate
from tests.serving.conftest import history, wave

pytestmark = [pytest.mark.ray, pytest.mark.cluster, pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(2400)]
Object = dict[str, Any]
CRON_JOB = "kopt-training-demand"
STARTS_WITHIN_S, TRAINS_WITHIN_S = 300.0, 900.0


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Image]:
    """``image(extra)``: what its image holds."""
    return image_builder(tmp_path_factory.mktemp("image"))


@pytest.fixture
def running() -> Iterator[Callable[["subprocess.Popen[bytes]"], "subprocess.Popen[bytes]"]]:
    """Ends, with all their children, what it is called with."""
    with ExitStack() as ends:

        def end(process: "subprocess.Popen[bytes]") -> None:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGTERM)
                try:
                    process.wait(20)
                except subprocess.TimeoutExpired:
                    os.killpg(process.pid, signal.SIGKILL)
            process.wait()

        def kept(process: "subprocess.Popen[bytes]") -> "subprocess.Popen[bytes]":
            ends.callback(end, process)
            return process

        yield kept


def _variables(container: Object, **values: str) -> dict[str, str]:
    """Those that the chart sets by value, with what a pod has instead of the ``values``."""
    return {one["name"]: one["value"] for one in container.get("env", ()) if "value" in one} | values


def test_the_serving_image_answers_and_shows_the_pages(
    image: Callable[[str], Image], charts: Helm, tmp_path: Path, short: Path, running: Callable[..., Any]
) -> None:
    """Ray and its configuration as KubeRay starts and sends them, on ports of this machine."""
    values = {
        "predictions": {"deploy": True, "workers": 1, "auth": "none"},
        "pages": {"enabled": True, "url": "http://127.0.0.1"},
    }
    objects = charts.render(values)
    service = next(one for one in objects if one["kind"] == "RayService")
    pages = next(one for one in objects if one["kind"] == "Deployment" and one["metadata"]["name"] == "kopt-pages")
    serving = image("serving")
    port, dashboard, gcs = free_port(), free_port(), free_port()
    config = yaml.safe_load(service["spec"]["serveConfigV2"])
    config["http_options"] |= {"host": "127.0.0.1", "port": port}
    (tmp_path / "serve.yaml").write_text(yaml.safe_dump(config))
    worker = service["spec"]["rayClusterConfig"]["workerGroupSpecs"][0]["template"]["spec"]["containers"][0]
    token = os.urandom(24).hex()
    env = _variables(worker, KOPT_API_HOST="127.0.0.1", RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=token)
    head = ["ray", "start", "--head", "--block", "--num-cpus=4", "--disable-usage-stats", f"--temp-dir={short}"]
    # Those of workers at random: from the usual range one may be taken here.
    head += ["--min-worker-port=0", "--max-worker-port=0"]
    head += [
        "--node-ip-address=127.0.0.1",
        f"--port={gcs}",
        "--dashboard-host=127.0.0.1",
        f"--dashboard-port={dashboard}",
    ]
    log = short / "log"
    running(serving.start(head, env, log))
    address = f"http://127.0.0.1:{dashboard}"
    _until_answered(f"{address}/api/version", log, {"Authorization": f"Bearer {token}"})
    deploy = serving.start(["serve", "deploy", str(tmp_path / "serve.yaml"), "--address", address], env, log)
    assert deploy.wait(120) == 0, log.read_text()[-3000:]
    url = f"http://127.0.0.1:{port}"
    _until_answered(f"{url}/readyz", log)
    question = {"series": [{**history(wave(700)), "name": "chat"}]}
    answer = httpx.post(f"{url}/v1/demand", json=question, timeout=60)
    assert answer.status_code == 200, answer.text
    assert answer.json()["series"][0]["horizons"], json.dumps(answer.json())[:2000]

    (container,) = pages["spec"]["template"]["spec"]["containers"]
    key = tmp_path / "key"
    key.write_text(os.urandom(32).hex())
    shown = free_port()
    env = _variables(
        container,
        KOPT_API_HOST="127.0.0.1",
        KOPT_PAGES_PORT=str(shown),
        KOPT_PAGES_SESSION_KEY_FILE=str(key),
        KOPT_URL=url,
        POD_IP="127.0.0.1",
        POD_NAMESPACE=NAMESPACE,
    )
    folder = tmp_path / "pages"
    folder.mkdir()
    running(serving.start(container["command"], env, folder / "log"))
    _until_answered(f"http://127.0.0.1:{shown}/login", folder / "log")
    assert not LACKING.search((folder / "log").read_text())


def test_the_training_image_registers_what_it_trained(
    image: Callable[[str], Image], charts: Helm, short: Path, running: Callable[..., Any]
) -> None:
    job = {"name": "demand", "predictor": "demand", "schedule": "0 3 * * 0", "dataClaim": "demand"}
    job |= {"arguments": ["--data=/data/requests", "--no-promote"]}
    values = {
        "predictions": {"mlflowUri": "http://mlflow.mlops:5000", "keysSecret": "kopt-keys"},
        "training": {"jobs": [job], "signingSecret": "kopt-signing"},
    }
    (cron_job,) = (
        one for one in charts.render(values) if one["kind"] == "CronJob" and one["metadata"]["name"] == CRON_JOB
    )
    (container,) = cron_job["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"]
    write_demand(generate(1, 3.0, seed=1), short / "requests")
    arguments = [one.replace("/data/", f"{short}/") for one in container["args"]]
    env = _variables(container, RAY_worker_niceness="0")
    # Its own registry, in its home: what is registered elsewhere is the same for the image.
    del env["KOPT_MLFLOW_URI"]
    log = short / "log"
    process = running(image("training").start(["kopt", *arguments], env, log))
    assert process.wait(TRAINS_WITHIN_S) == 0, log.read_text()[-3000:]
    assert "demand version 1 is challenger" in log.read_text()
    assert not LACKING.search(log.read_text())


@pytest.fixture
def short(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with a short path: those of Ray's sockets have 107 bytes at most."""
    import tempfile

    with tempfile.TemporaryDirectory(prefix="kopt", dir="/tmp", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


def _until_answered(url: str, log: Path, headers: dict[str, str] | None = None) -> None:
    """Waits for an answer that is no error."""
    end_s, last = time.monotonic() + STARTS_WITHIN_S, ""
    while True:
        try:
            answer = httpx.get(url, headers=headers, timeout=5)
            if answer.status_code == 200:
                return
            last = f"{answer.status_code} {answer.text[:1000]}"
        except httpx.HTTPError as error:
            last = repr(error)
        assert time.monotonic() < end_s, f"{url}: {last}\n{log.read_text()[-3000:]}"
        time.sleep(1)
