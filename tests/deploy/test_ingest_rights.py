"""The ingest controller with its own account's token: a LendingPool names a service, a real Prometheus has measured it,
and the endpoint answers it by name; killed, the other replica goes on; it is refused nothing and uses what it may."""

import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from asgi_server import served
from chart import WITHOUT_DEFAULTS
from controlplane.api import Api, Refused
from controlplane.plane import ControlPlane
from controlplane.processes import wait_for
from serving.conftest import MemorySource, StandInModel, no_store

from kopt.core.settings import Settings
from kopt.data.demand.table import DemandSeries
from kopt.serving.client.blocking import PredictionClient
from kopt.serving.contract.demand_answers import DemandQuery, History
from kopt.serving.demand.feature_lookup import StoredFeatures
from kopt.serving.endpoint.app import create_app
from kopt.serving.endpoint.assemble import Parts, assemble

from .rights import (
    Object,
    assert_off_unless_enabled,
    assert_refused_nothing,
    audited,
    granted,
    roles_of,
    start_controller,
    used,
)

NAMESPACE, ACCOUNT, POOL = "kopt-system", "kopt-ingest", ("kaiwo.ai/v1alpha1", "LendingPool")
VALUES = {
    "ingest": {"enabled": True},
    **WITHOUT_DEFAULTS,
}
ENDPOINT = {"predictions": {"url": "http://kopt.example:8700"}}
SELDOM = {
    ("create", "events.k8s.io", "events"): "only where a LendingPool cannot be read at all",
    ("patch", "events.k8s.io", "events"): "only for an event that is repeated for a minute",
}


def pool(name: str, **source: Any) -> Object:
    service = {
        "name": "chat",
        "namespace": "ml",
        "selector": {"matchLabels": {"app": "chat"}},
        "capacityPerGpu": 600,
        "demandSource": source,
    }
    return {
        "apiVersion": POOL[0],
        "kind": POOL[1],
        "metadata": {"name": name},
        "spec": {"gpus": 8, "services": [service]},
    }


def test_it_is_off_unless_it_is_asked_for(charts: Any) -> None:
    assert_off_unless_enabled(charts, VALUES, ACCOUNT)


def test_it_may_push_demand_and_shows_a_token_of_its_own(charts: Any) -> None:
    documents = charts.render(
        VALUES | {"predictions": {"deploy": True, "mlflowUri": "http://mlflow.mlops:5000", "workers": 1}}
    )
    by_name = {(document["kind"], document["metadata"]["name"]): document for document in documents}
    role = by_name["ClusterRole", "kopt-predictions-demand-writer"]
    assert role["rules"] == [{"nonResourceURLs": ["/v1/demand/*"], "verbs": ["put"]}]
    binding = by_name["ClusterRoleBinding", "kopt-predictions-demand-writer"]
    assert [subject["name"] for subject in binding["subjects"]] == [ACCOUNT]
    for rule in by_name["ClusterRole", "kopt-predictions-caller"]["rules"]:
        assert "put" not in rule["verbs"]
    pod = by_name["Deployment", ACCOUNT]["spec"]["template"]["spec"]
    assert "predictions-token" in {volume["name"] for volume in pod["volumes"]}


def test_secrets_and_services_are_mounted_where_the_arguments_say(charts: Any) -> None:
    prometheus = {"url": "https://prometheus.example", "tokenSecret": "reader", "caSecret": "authority"}
    ingest = {"enabled": True, "prometheus": prometheus, "services": '[chat]\nengine = "vLLM"\n'}
    documents = charts.render(VALUES | {"ingest": ingest} | ENDPOINT)
    (pod,) = [
        document["spec"]["template"]["spec"]
        for document in documents
        if (document["kind"], document["metadata"]["name"]) == ("Deployment", ACCOUNT)
    ]
    (container,) = pod["containers"]
    mounted = {Path(mount["mountPath"]) for mount in container["volumeMounts"]}
    for option in ("--token-file", "--certificate-authority", "--services"):
        (value,) = [text.partition("=")[2] for text in container["args"] if text.startswith(f"{option}=")]
        assert Path(value).parent in mounted
    assert "--prometheus=https://prometheus.example" in container["args"]
    (config,) = [document for document in documents if document["kind"] == "ConfigMap"]
    assert config["data"] == {"services.toml": '[chat]\nengine = "vLLM"\n'}


@pytest.mark.parametrize(
    "wrong", [{"prometheus": {"url": "ftp://x"}}, {"prometheus": {"url": "http://me:secret@x"}}, {"settle": "5m"}]
)
def test_wrong_values_are_refused(charts: Any, wrong: Object) -> None:
    with pytest.raises(AssertionError, match="specifications of the schema"):
        charts.render({"ingest": {"enabled": True, **wrong}})


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A real endpoint over a stand-in model."""
    source = MemorySource()
    source.add(StandInModel())
    parts = Parts(source=source, features=StoredFeatures(no_store), refresh_s=3600)
    built = assemble(Settings(home=tmp_path_factory.mktemp("endpoint")), parts)
    built.start()
    with served(create_app(built, manage=False)) as address:
        yield address
    built.stop()


def metric(address: str, name: str) -> float:
    lines = httpx.get(address, trust_env=False).text.splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.partition("{")[0].partition(" ")[0] == name)


def answered(url: str, service: str) -> bool:
    with PredictionClient(url, deadline_s=10.0) as client:
        return not client.demand(DemandQuery([History(service)])).series[0].horizons[0].demand.refused


@pytest.fixture
def worked(
    control_plane: ControlPlane, charts: Any, install: Callable[..., None], url: str, prometheus_server: Any
) -> list[Object]:
    """The audit log of two replicas, of which one was killed."""
    install(VALUES)
    started, api = datetime.now(UTC), control_plane.api
    now = int(time.time()) // 300 * 300
    value = np.full(300, 50.0)
    measured = [DemandSeries(name, now - 300 * 300.0, 300, value, start_known=True) for name in ("chat", "search")]
    prometheus = prometheus_server(measured).url
    api.create(pool("chats", query='sum(increase(requests_total{service="chat"}[$step]))'))
    ingest = {"enabled": True, "prometheus": {"url": prometheus}}
    values = VALUES | {"ingest": ingest, "predictions": {"url": url, "auth": "none"}}
    first, first_metrics = start_controller(control_plane, charts, values, ACCOUNT)
    first.wait_until(lambda: metric(first_metrics, "kopt_ingest_leading") == 1)
    second, second_metrics = start_controller(control_plane, charts, values, ACCOUNT, replica=1)
    second.wait_until(lambda: metric(second_metrics, "kopt_ingest_newest_bucket_timestamp_seconds") == 0)
    wait_for(lambda: answered(url, "ml/chat"), what="the service is forecast by name")
    assert metric(first_metrics, "kopt_ingest_buckets_total") >= 290
    assert metric(first_metrics, "kopt_ingest_newest_bucket_timestamp_seconds") >= now - 600
    assert metric(second_metrics, "kopt_ingest_buckets_total") == 0, "only one works"
    # The service goes on under the other, and so does a new one and one that fails.
    first.kill()
    broken = pool("broken", query="sum(")
    broken["spec"]["services"][0]["name"] = "broken"
    api.create(broken)
    searches = pool("searches", query='sum(increase(requests_total{service="search"}[$step]))')
    searches["spec"]["services"][0]["name"] = "search"
    api.create(searches)
    wait_for(lambda: answered(url, "ml/search"), what="the new leader follows a new service", timeout_s=90)
    wait_for(lambda: metric(second_metrics, "kopt_ingest_failures_total") > 0, what="the failure is counted")
    assert metric(second_metrics, "kopt_ingest_failing_services") == 1
    second.stop()
    for name in ("chats", "broken", "searches"):
        api.delete(*POOL, name, "")
    return audited(control_plane, ACCOUNT, started)


@pytest.mark.services
@pytest.mark.cluster
def test_it_feeds_the_endpoint_is_refused_nothing_and_uses_its_rights(
    worked: list[Object], charts: Any, control_plane: ControlPlane
) -> None:
    assert_refused_nothing(worked)
    roles = roles_of(charts, VALUES, ACCOUNT)
    assert granted(roles) - used(worked) - SELDOM.keys() == set(), "given and never used"
    stolen = Api(Path(control_plane.kubeconfig_for(ACCOUNT, NAMESPACE)))
    with pytest.raises(Refused, match="lendingpools"):
        stolen.create(pool("mine", engine="vLLM"), dryRun="All")
    with pytest.raises(Refused, match="secrets"):
        stolen.list("v1", "Secret", NAMESPACE)


@pytest.mark.cluster
@pytest.mark.parametrize("source", [{}, {"engine": "vLLM", "query": "q"}, {"engine": "TGI"}, {"query": ""}])
def test_the_server_refuses_a_source_that_cannot_be_meant(
    control_plane: ControlPlane, install: Callable[..., None], source: dict[str, str]
) -> None:
    install(VALUES)
    with pytest.raises(Refused):
        control_plane.api.create(pool("wrong", **source), dryRun="All")
    control_plane.api.create(pool("right", engine="vLLM"), dryRun="All")
