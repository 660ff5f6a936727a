"""Each container of the chart starts from what the commands of deploy/images/Dockerfile make (``built_images``)."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from chart import NAMESPACE, ROOT, Helm
from controlplane.api import kubeconfig
from deploy.built_images import LACKING, Image, image_builder

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(1800)]
Object = dict[str, Any]
LIGHT = ("controllers", "agents", "staging")
"""Extras whose packages are installed in a minute; Ray and MLflow of the others take gigabytes."""
STARTS_WITHIN_S = 90.0


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Image]:
    """``image(extra)``: what its image holds."""
    return image_builder(tmp_path_factory.mktemp("image"))


def _containers(documents: list[Object], extra: str) -> Iterator[tuple[str, list[str], dict[str, str]]]:
    """Name, arguments and plain variables of what runs the image's entry point."""
    for document in documents:
        text = document.get("spec", {})
        for spec in (text.get("template"), text.get("jobTemplate", {}).get("spec", {}).get("template")):
            for container in ((spec or {}).get("spec") or {}).get("containers") or ():
                if f"/kopt-{extra}:" in container["image"] and not container.get("command"):
                    env = {one["name"]: one["value"] for one in container.get("env") or () if "value" in one}
                    yield container["name"], list(container.get("args") or ()), env


@pytest.mark.parametrize("extra", LIGHT)
def test_each_container_of_the_chart_starts_from_its_image(
    extra: str, image: Callable[[str], Image], charts: Helm, everything: Object, tmp_path: Path
) -> None:
    """Towards a cluster that does not answer: it says so, or tries again, and lacks no module and no file."""
    values = {**everything, **yaml.safe_load((ROOT / "deploy" / "values" / "evaluation.yaml").read_text())}
    values["predictions"] = everything["predictions"]
    containers = {name: (arguments, env) for name, arguments, env in _containers(charts.render(values), extra)}
    # The staging controller starts this one.
    containers |= {"stage": (["stage", "s3://none/none", "copies"], {})} if extra == "staging" else {}
    assert containers
    found = image(extra)
    access = kubeconfig(tmp_path / "kubeconfig", "https://127.0.0.1:1", Path(__file__), {"token": "none"})
    usual = {"POD_NAME": "pod", "POD_NAMESPACE": NAMESPACE, "POD_IP": "127.0.0.1", "NODE_NAME": "node"}
    running = {}
    for name, (arguments, env) in containers.items():
        folder = tmp_path / name
        folder.mkdir()
        arguments = [one.replace("$(POD_NAMESPACE)", NAMESPACE) for one in arguments]
        log = folder / "log"
        running[name] = (found.start(["kopt", *arguments], {**usual, **env, "KUBECONFIG": str(access)}, log), log)
    end_s = time.monotonic() + STARTS_WITHIN_S
    while time.monotonic() < end_s and not all(log.stat().st_size for _, log in running.values()):
        time.sleep(0.5)
    time.sleep(3)
    for process, _ in running.values():
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    wrong = {name: log.read_text()[-1500:] for name, (_, log) in running.items() if LACKING.search(log.read_text())}
    assert not wrong
    silent = [name for name, (_, log) in running.items() if not log.stat().st_size]
    assert not silent, "they never came so far as to say anything"
