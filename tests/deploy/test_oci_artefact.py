"""The chart as an artefact in a registry: packaged, pushed, and installed from there by version and by digest."""

import re
import shutil
from collections.abc import Callable, Iterator

import httpx
import pytest
import yaml
from chart import CHART, NAMESPACE, RELEASE, Helm
from controlplane.api import documents
from controlplane.plane import ControlPlane
from controlplane.processes import Server, free_port

pytestmark = [pytest.mark.cluster, pytest.mark.services]
VERSION = yaml.safe_load((CHART / "Chart.yaml").read_text())["version"]


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """HOST:PORT of a real registry (Debian's docker-registry) that is empty."""
    if shutil.which("docker-registry") is None:
        pytest.skip("docker-registry is not installed (Debian package docker-registry)")
    folder, address = tmp_path_factory.mktemp("registry"), f"127.0.0.1:{free_port()}"
    settings = {
        "version": 0.1,
        "log": {"accesslog": {"disabled": True}},
        "storage": {"filesystem": {"rootdirectory": str(folder / "blobs")}},
        "http": {"addr": address},
    }
    (folder / "registry.yml").write_text(yaml.safe_dump(settings))
    server = Server("docker-registry", ["docker-registry", "serve", folder / "registry.yml"], folder)
    server.wait_until(lambda: httpx.get(f"http://{address}/v2/", trust_env=False).is_success)
    yield address
    server.kill()


@pytest.fixture(scope="module")
def pushed(registry: str, charts: Helm, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """The reference of the chart in the registry, and the digest that ``helm push`` printed."""
    folder = tmp_path_factory.mktemp("package")
    done = charts.run("package", CHART, "--destination", folder)
    assert done.returncode == 0, done.stderr
    done = charts.run("push", folder / f"kaiwo-optimizer-{VERSION}.tgz", f"oci://{registry}/charts", "--plain-http")
    assert done.returncode == 0, done.stderr
    (digest,) = re.findall(r"sha256:[0-9a-f]{64}", done.stdout + done.stderr)
    return f"oci://{registry}/charts/kaiwo-optimizer", digest


def test_what_comes_from_the_registry_renders_as_the_folder_does(pushed: tuple[str, str], charts: Helm) -> None:
    reference, digest = pushed
    values = {"pages": {"enabled": True}}
    options = ("--namespace", NAMESPACE, "--plain-http", "--include-crds")
    for wanted in ((reference, "--version", VERSION), (f"{reference}@{digest}",)):
        done = charts.run("template", RELEASE, *wanted, *options, values=values)
        assert done.returncode == 0, done.stderr
        names = [(item["kind"], item["metadata"]["name"]) for item in documents(done.stdout)]
        local = charts.run("template", RELEASE, CHART, "--namespace", NAMESPACE, "--include-crds", values=values)
        assert names == [(item["kind"], item["metadata"]["name"]) for item in documents(local.stdout)]
    # The schema of values travels with it.
    done = charts.run("template", RELEASE, reference, "--plain-http", values={"pages": {"replica": 1}})
    assert done.returncode != 0
    assert "replica" in done.stderr


@pytest.mark.long
def test_it_is_installed_and_upgraded_from_the_registry(
    pushed: tuple[str, str], charts: Helm, control_plane: ControlPlane, uninstall: Callable[[], None]
) -> None:
    reference, digest = pushed
    where = ("--namespace", NAMESPACE, "--create-namespace", "--plain-http", "--kubeconfig", control_plane.kubeconfig)
    try:
        done = charts.run("install", RELEASE, reference, "--version", VERSION, *where, values={})
        assert done.returncode == 0, done.stderr
        assert control_plane.api.get("apps/v1", "Deployment", "kopt-webhook", NAMESPACE)
        done = charts.run("upgrade", RELEASE, f"{reference}@{digest}", *where, values={"mode": "annotate"})
        assert done.returncode == 0, done.stderr
        policy = control_plane.api.get("kaiwo.ai/v1alpha1", "ConformancePolicy", "default", "")
        assert policy["spec"]["mode"] == "annotate"
    finally:
        uninstall()
