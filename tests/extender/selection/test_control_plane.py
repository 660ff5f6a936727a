"""A NodeSelectionPolicy on a real API server moves pods of a real scheduler by what a real Prometheus has recorded."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from controlplane.api import Api, Refused
from controlplane.kwok import Kwok, Nodes
from controlplane.plane import ControlPlane
from controlplane.processes import wait_for
from prometheus_server import RunningPrometheus

from kopt.core.alerts.catalogue import rule_groups
from tests.cost.conftest import kopt
from tests.extender.conftest import RunningExtender, gpu_pod, start_extender
from tests.extender.test_scheduling_by_the_policy import bound
from tests.health.conftest import Exporter

pytestmark = pytest.mark.cluster
Object = dict[str, Any]
STARTERS = (start_extender,)
CRD = Path(__file__).parents[3] / "deploy" / "chart" / "crds" / "nodeselectionpolicies.yaml"
KIND = ("kaiwo.ai/v1alpha1", "NodeSelectionPolicy")


@pytest.fixture
def plane(control_plane: ControlPlane) -> Iterator[ControlPlane]:
    control_plane.apply_crds([CRD])
    yield control_plane
    definition = ("apiextensions.k8s.io/v1", "CustomResourceDefinition", "nodeselectionpolicies.kaiwo.ai")
    control_plane.api.delete(*definition)
    wait_for(lambda: control_plane.api.find(*definition) is None)


@pytest.fixture
def nodes(plane: ControlPlane, kwok: Kwok) -> Iterator[Nodes]:
    with kwok.nodes(3, gpus=8) as made:
        yield made


@pytest.fixture
def prometheus(nodes: Nodes, tmp_path: Path) -> Iterator[str]:
    """It scrapes the first two nodes; on the first a pod works on all GPUs, the second holds nothing."""
    exporter = Exporter()
    busy, idle, _ = nodes
    for node in (busy, idle):
        for what in ("capacity", "allocatable"):
            exporter.series[f'kube_node_status_{what}{{node="{node}",resource="nvidia_com_gpu"}}'] = 8
    pod = f'node="{busy}",namespace="research",pod="train"'
    exporter.series[f'kube_pod_container_resource_requests{{{pod},container="c",resource="nvidia_com_gpu"}}'] = 8
    for gpu in range(8):
        exporter.series[f'kopt_gpu_busy_ratio{{{pod},gpu="{gpu}"}}'] = 0.75
    recorded = [group | {"interval": "1s"} for group in rule_groups() if group["name"].startswith("kopt-recorded")]
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump({"groups": recorded}))
    configuration = (
        "global: {scrape_interval: 1s}\nrule_files: [rules.yaml]\nscrape_configs:\n- job_name: all\n"
        f"  honor_labels: true\n  static_configs: [{{targets: ['{exporter.address}']}}]\n"
    )
    running = RunningPrometheus(tmp_path, configuration=configuration)
    yield running.url
    running.stop()
    exporter.stop()


def policy(name: str, weights: Object, **more: Any) -> Object:
    return {"apiVersion": KIND[0], "kind": KIND[1], "metadata": {"name": name}, "spec": {"weights": weights, **more}}


def conditions(api: Api, name: str) -> dict[str, tuple[str, str, str]]:
    status = (api.find(*KIND, name, "") or {}).get("status") or {}
    return {item["type"]: (item["status"], item["reason"], item["message"]) for item in status.get("conditions") or ()}


def test_pods_go_to_the_node_that_was_idle_as_long_as_the_policy_says_so(
    plane: ControlPlane, nodes: Nodes, prometheus: str, start_extender: Callable[..., RunningExtender]
) -> None:
    api, space = plane.api, plane.api.space("selection")
    busy, idle, unknown = nodes
    extender = start_extender(plane, space, f"--prometheus={prometheus}")
    extender.start_scheduler(space)
    names = iter(range(100))

    def home() -> str:
        name = f"p{next(names)}"
        api.create(gpu_pod(name, space, scheduler=space, selector=nodes.selector))
        return str(bound(api, name, space)["spec"]["nodeName"])

    # On the node that is busy by what Prometheus says: without a policy nobody looks.
    api.create(gpu_pod("first", space, scheduler=space, selector={"kubernetes.io/hostname": busy}))
    assert bound(api, "first", space)["spec"]["nodeName"] == busy
    assert home() == busy
    assert [reason["code"] for reason in extender.explain(space, "p0")["reasons"]].count("NODE_WEIGHTS") == 0

    api.create(policy("fleet", {"utilisationHistory": 16}, utilisationHistory={"window": "5m"}))
    wait_for(lambda: conditions(api, "fleet").get("UtilisationMeasured", ("", "", ""))[1] == "SomeNodesUnmeasured")
    said = conditions(api, "fleet")
    assert said["Accepted"][:2] == ("True", "InForce")
    assert said["UtilisationMeasured"][2] == (
        f"The use of 1 of 3 nodes is not known over the last 5 min, and counts as the mean of the others: {unknown}."
    )
    stored = api.get(*KIND, "fleet", "")
    assert (stored["status"]["unmeasuredNodes"], stored["status"]["unmeasured"]) == (1, [unknown])
    assert stored["spec"]["weights"] == {"utilisationHistory": 16, "health": 8, "topology": 2, "distribution": 0.5}

    assert home() == idle
    why = extender.explain(space, "p1")
    assert why["breakdown"]["utilisation"] == pytest.approx(16.0)
    shares = {ranked["node"]: ranked["breakdown"]["utilisation"] for ranked in why["runner_ups"]}
    assert shares == {unknown: pytest.approx(10.0, abs=0.1), busy: pytest.approx(4.0, abs=0.1)}
    (reason,) = (item["message"] for item in why["reasons"] if item["code"] == "NODE_WEIGHTS")
    assert (
        f"GPUs in use over the last 5 min: {idle} 0%, {unknown} 38% (not measured: the mean of the others)." in reason
    )
    events = [item["note"] for item in api.list("events.k8s.io/v1", "Event", space) if item["reason"] == "NodeChosen"]
    assert any("utilisation +16.000" in note and reason in note for note in events)

    shown = kopt("nodes", "scores", f"--prometheus={prometheus}", "--kubeconfig", str(plane.kubeconfig))
    assert shown["policy"] == "fleet"
    rows = {row["node"]: row for row in shown["nodes"]}
    assert [row["node"] for row in shown["nodes"] if row["node"] in nodes] == [idle, unknown, busy]
    assert (rows[idle]["use"], rows[busy]["use"], rows[unknown]["use"]) == (0.0, pytest.approx(0.75), None)
    assert rows[busy]["utilisation"] == pytest.approx(4.0, abs=0.1)

    # A second one says that it is not in force, and comes into force when the first is gone.
    api.create(policy("second", {"utilisationHistory": 0}))
    wait_for(lambda: conditions(api, "second").get("Accepted", ("", ""))[1] == "AnotherInForce")
    assert "NodeSelectionPolicy fleet is older and in force" in conditions(api, "second")["Accepted"][2]
    api.delete(*KIND, "fleet", "")
    wait_for(lambda: conditions(api, "second").get("Accepted", ("", ""))[1] == "InForce")
    assert conditions(api, "second")["UtilisationMeasured"][:2] == ("Unknown", "NotWeighed")
    api.delete(*KIND, "second", "")
    wait_for(lambda: api.list(*KIND) == [])
    assert home() in (busy, idle)


NONE = dict.fromkeys(("utilisationHistory", "health", "topology", "distribution"), 0)


@pytest.mark.parametrize(
    ("weights", "more", "words"),
    [
        ({"health": -1}, {}, "spec.weights.health in body should be greater than or equal to 0"),
        ({"health": 1001}, {}, "spec.weights.health in body should be less than or equal to 1000"),
        (NONE, {}, "all weights are 0, so that nothing would be weighed; give one of them a weight"),
        ({"utilization": 3}, {}, 'unknown field "spec.weights.utilization"'),
        ({}, {"utilisationHistory": {"window": "4m"}}, "use is averaged over 5m to 7d"),
        ({}, {"utilisationHistory": {"window": "169h"}}, "use is averaged over 5m to 7d"),
    ],
    ids=json.dumps,
)
def test_what_cannot_be_meant_is_refused_with_what_to_write(
    plane: ControlPlane, weights: Object, more: Object, words: str
) -> None:
    with pytest.raises(Refused) as refused:
        plane.api.create(policy("wrong", weights, **more), fieldValidation="Strict", dryRun="All")
    assert words in refused.value.message
