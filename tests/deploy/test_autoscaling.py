"""A HorizontalPodAutoscaler scales on our forecast: installed as the chart renders it, asked by the real
controller-manager through the real API server. It scales up before the demand rises, and keeps its scale where there is
no forecast."""

import base64
import ssl
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from chart import NAMESPACE, WITHOUT_DEFAULTS
from controlplane.api import Api, Refused
from controlplane.plane import ControlPlane
from controlplane.processes import Server, free_port, wait_for
from metrics_api import METRICS_ACCOUNT, METRICS_API, lead_metrics_to
from replicas import KOPT
from shipped_models import shipped_endpoint

from kopt.serving.client.blocking import PredictionClient
from kopt.serving.contract.common import GRID_S

from .rights import audited, used

NAME, API_SERVICE = METRICS_ACCOUNT, METRICS_API[-1]
VALUES: dict[str, Any] = {
    "autoscaling": {"enabled": True},
    **WITHOUT_DEFAULTS,
}
ENDPOINT = {"predictions": {"url": "http://kopt.example:8700"}}
Object = dict[str, Any]
QUIET, SPIKE, PER_POD, DAY = 300.0, 3000.0, 2, 288
"""Requests in five minutes, requests that a pod answers in a second, and buckets in a day."""


def by_name(objects: list[Object]) -> dict[tuple[str, str], Object]:
    return {(document["kind"], document["metadata"]["name"]): document for document in objects}


def test_it_is_off_unless_it_is_asked_for(charts: Any) -> None:
    names = {document["metadata"]["name"] for document in charts.render()}
    assert not {NAME, API_SERVICE, "kopt-autoscaling-tls"} & names
    assert ("APIService", API_SERVICE) in by_name(charts.render(VALUES))


def test_the_api_server_trusts_the_certificate_that_is_served(charts: Any, tmp_path: Path) -> None:
    objects = by_name(charts.render(VALUES))
    secret = objects["Secret", "kopt-autoscaling-tls"]["data"]
    spec = objects["APIService", API_SERVICE]["spec"]
    assert spec["caBundle"] == secret["ca.crt"]
    assert "insecureSkipTLSVerify" not in spec
    for name, text in secret.items():
        (tmp_path / name).write_bytes(base64.b64decode(text))
    trust = ssl.create_default_context(cadata=(tmp_path / "ca.crt").read_text())
    trust.load_verify_locations(tmp_path / "ca.crt")
    ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(tmp_path / "tls.crt", tmp_path / "tls.key")


def test_a_certificate_of_ones_own_takes_the_place_of_the_charts(charts: Any) -> None:
    annotations = {"cert-manager.io/inject-ca-from": f"{NAMESPACE}/metrics"}
    tls = {"secret": "metrics", "apiServiceAnnotations": annotations}
    objects = by_name(charts.render(VALUES | {"autoscaling": {"enabled": True, "tls": tls}}))
    assert ("Secret", "kopt-autoscaling-tls") not in objects
    assert objects["APIService", API_SERVICE]["metadata"]["annotations"] == annotations
    assert "caBundle" not in objects["APIService", API_SERVICE]["spec"]
    volumes = objects["Deployment", NAME]["spec"]["template"]["spec"]["volumes"]
    assert "metrics" in [volume.get("secret", {}).get("secretName") for volume in volumes]


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The real application with the shipped model."""
    with shipped_endpoint(tmp_path_factory.mktemp("endpoint")) as url:
        yield url


@pytest.fixture
def autoscaling(
    control_plane: ControlPlane, charts: Any, install: Callable[..., None], endpoint: str, tmp_path: Path
) -> Iterator[Server]:
    """The process that the installed Deployment describes, behind the installed APIService."""
    values = VALUES | {"predictions": {"url": endpoint, "auth": "none"}}
    install(values)
    api, port = control_plane.api, free_port()
    secret = api.get("v1", "Secret", "kopt-autoscaling-tls", NAMESPACE)["data"]
    for name, text in secret.items():
        (tmp_path / name).write_bytes(base64.b64decode(text))
    deployment = api.get("apps/v1", "Deployment", NAME, NAMESPACE)
    arguments = deployment["spec"]["template"]["spec"]["containers"][0]["args"]
    local = [text for text in arguments if not text.startswith(("--host", "--port", "--api-port", "--tls"))]
    options = [f"--tls={tmp_path}", f"--api-port={port}", f"--port={free_port()}"]
    env = {"KUBECONFIG": str(control_plane.kubeconfig_for(NAME, NAMESPACE))}
    server = control_plane.start_server("autoscaling", [*KOPT, *local, *options], env)
    lead_metrics_to(api, "localhost", port)
    yield server
    server.kill()
    api.delete("v1", "Service", NAME, NAMESPACE)
    api.delete(*METRICS_API, "")


def push(url: str, service: str, ahead: int) -> None:
    """Ten days with a spike of an hour in each; the next one begins ``ahead`` buckets after the newest."""
    newest = int(time.time()) // GRID_S - 1
    offsets = np.arange(1 - 10 * DAY, 1)
    noise = np.random.default_rng(ahead).normal(1.0, 0.03, len(offsets))
    value = np.where((offsets - ahead) % DAY < 12, SPIKE, QUIET) * noise
    with PredictionClient(url, deadline_s=60.0) as client:
        client.push_demand(service, [float((newest + int(i)) * GRID_S) for i in offsets], value.tolist())


def autoscaler(namespace: str) -> list[Object]:
    labels = {"app": "chat"}
    container = {"name": "serve", "image": "serve"}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [container]}}
    metric = {"name": "kopt_requests_per_second", "selector": {"matchLabels": {"service": "chat", "lead": "10m"}}}
    target = {"type": "AverageValue", "averageValue": str(PER_POD)}
    spec = {
        "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "chat"},
        "minReplicas": 1,
        "maxReplicas": 10,
        "metrics": [{"type": "External", "external": {"metric": metric, "target": target}}],
    }
    meta = {"name": "chat", "namespace": namespace}
    deployment = {"replicas": 1, "selector": {"matchLabels": labels}, "template": template}
    return [
        {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": meta, "spec": deployment},
        {"apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "metadata": meta, "spec": spec},
    ]


@pytest.mark.cluster
def test_it_scales_up_before_the_spike_and_keeps_its_scale_without_a_forecast(
    control_plane: ControlPlane, autoscaling: Server, endpoint: str
) -> None:
    api = control_plane.api
    space = api.space("autoscaled", {})
    push(endpoint, f"{space}/chat", ahead=DAY // 2)
    api.apply(*autoscaler(space))

    def condition(kind: str) -> Object:
        status = api.get("autoscaling/v2", "HorizontalPodAutoscaler", "chat", space).get("status", {})
        found = [each for each in status.get("conditions", []) if each["type"] == kind]
        return found[0] if found else {}

    def replicas() -> int:
        return int(api.get("apps/v1", "Deployment", "chat", space)["spec"]["replicas"])

    wait_for(lambda: condition("ScalingActive").get("status") == "True", what="the autoscaler has read the forecast")
    assert replicas() == 1
    # What has been measured is as low as before; only the time of day is another.
    push(endpoint, f"{space}/chat", ahead=1)
    wait_for(lambda: replicas() >= SPIKE / GRID_S / PER_POD, what="it scales for the spike that is forecast")
    assert replicas() <= 8
    scaled = replicas()

    root = "/apis/external.metrics.k8s.io/v1beta1"
    other = f"{root}/namespaces/default/kopt_requests_per_second?labelSelector=service=chat"
    with pytest.raises(Refused, match="NO_FEATURES"):
        api.request("GET", other)
    with pytest.raises(Refused, match="forbidden"):
        Api(control_plane.kubeconfig_as("somebody")).request("GET", other)
    port = api.get(*METRICS_API, "")["spec"]["service"]["port"]
    with pytest.raises(httpx.TransportError):
        httpx.get(f"https://127.0.0.1:{port}{root}", verify=False, trust_env=False)

    push(endpoint, f"{space}/chat", ahead=DAY // 2)
    autoscaling.kill()
    wait_for(lambda: condition("ScalingActive").get("reason") == "FailedGetExternalMetric", what="there is no metric")
    assert replicas() == scaled
    api.delete("autoscaling/v2", "HorizontalPodAutoscaler", "chat", space)
    api.delete("apps/v1", "Deployment", "chat", space, propagationPolicy="Background")
    rights = used(audited(control_plane, NAME, datetime(1970, 1, 1, tzinfo=UTC)))
    assert {resource for _, _, resource in rights} == {"configmaps", "featurerollouts"}
