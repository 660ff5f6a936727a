"""Queues that are there already become KaiwoQueues that compile to what they were."""

from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from kopt.cli.main import app
from kopt.cluster.objects.custom.kaiwo_queue import pool_document, pool_of, queue_document, queue_of
from kopt.cluster.workloads.queue_trees.from_kai import from_kai
from kopt.cluster.workloads.queue_trees.from_kueue import from_kueue
from kopt.cluster.workloads.queue_trees.imported import Imported
from kopt.core.scheduling.queue_tree import Engine, KaiwoQueue
from kopt.core.units import parse_thousandths
from kopt.policies.queues import QueueTree, compile_tree

from .trees import trees

Object = dict[str, Any]
AMOUNTS = {"amd.com/gpu": "{}", "cpu": "{}500m", "memory": "{}Gi"}


@st.composite
def kueue_objects(draw: Any) -> list[Object]:
    """Cohorts in a tree, ClusterQueues in them or in none, with flavours in one or two groups."""
    flavors = draw(st.sampled_from([("default",), ("mi300", "mi250")]))
    cohorts = [f"c{number}" for number in range(draw(st.integers(0, 4)))]
    objects = [
        {"kind": "ResourceFlavor", "metadata": {"name": name}, "spec": {"nodeLabels": {"pool": name}}}
        for name in flavors
    ]
    for number, name in enumerate(cohorts):
        parent = draw(st.sampled_from(["", *cohorts[:number]]))
        spec = {"parentName": parent} if parent else {}
        if draw(st.booleans()):
            spec["resourceGroups"] = [_group(draw, [*AMOUNTS], flavors, limits=bool(parent))]
        if "resourceGroups" in spec and draw(st.booleans()):
            spec["fairSharing"] = {"weight": str(draw(st.integers(1, 9)))}
        objects.append({"kind": "Cohort", "metadata": {"name": name}, "spec": spec})
    for number in range(draw(st.integers(1, 6))):
        objects.append(
            {"kind": "ClusterQueue", "metadata": {"name": f"q{number}"}, "spec": _cluster_queue(draw, cohorts, flavors)}
        )
    return objects


def _cluster_queue(draw: Any, cohorts: list[str], flavors: tuple[str, ...]) -> Object:
    cohort = draw(st.sampled_from(["", "nowhere", *cohorts]))
    spec: Object = {"cohortName": cohort} if cohort else {}
    apart = len(flavors) > 1 and draw(st.booleans())
    if apart:
        spec["resourceGroups"] = [
            _group(draw, ["cpu", "memory"], flavors[1:], limits=bool(cohort)),
            _group(draw, ["amd.com/gpu"], flavors[:1], limits=bool(cohort)),
        ]
    else:
        spec["resourceGroups"] = [_group(draw, draw(st.permutations([*AMOUNTS])), flavors, limits=bool(cohort))]
    if draw(st.booleans()):
        spec["fairSharing"] = {"weight": draw(st.sampled_from(["1", "500m", "20"]))}
    spec["preemption"] = {
        "withinClusterQueue": draw(st.sampled_from(["Never", "LowerPriority"])),
        "reclaimWithinCohort": draw(st.sampled_from(["Never", "Any", "LowerPriority"])),
    }
    spec["namespaceSelector"] = draw(st.sampled_from([{}, {"matchLabels": {"team": "a"}}]))
    spec["queueingStrategy"] = draw(st.sampled_from(["StrictFIFO", "BestEffortFIFO"]))
    spec["flavorFungibility"] = {"whenCanBorrow": "TryNextFlavor", "whenCanPreempt": "MayStopSearch"}
    return spec


def _group(draw: Any, covered: list[str], flavors: tuple[str, ...], *, limits: bool) -> Object:
    def resource(name: str) -> Object:
        number = draw(st.integers(0, 40))
        row = {"name": name, "nominalQuota": AMOUNTS[name].format(number)}
        if limits and draw(st.booleans()):
            row["borrowingLimit"] = AMOUNTS[name].format(draw(st.integers(0, 40)))
        if limits and draw(st.booleans()):
            row["lendingLimit"] = AMOUNTS[name].format(draw(st.integers(0, number)))
        return row

    rows = [{"name": flavor, "resources": [resource(name) for name in covered]} for flavor in flavors]
    return {"coveredResources": list(covered), "flavors": rows}


def exact(value: Any) -> Any:
    """Amounts as numbers, so that 1k and 1000 are one; without what has no effect."""
    if isinstance(value, dict):
        return {key: _amount(item) if key in _AMOUNT_FIELDS else exact(item) for key, item in value.items()}
    return [exact(item) for item in value] if isinstance(value, list) else value


_AMOUNT_FIELDS = ("nominalQuota", "borrowingLimit", "lendingLimit", "weight")


def _amount(value: Any) -> int:
    return parse_thousandths(value)


def compiled(imported: Imported, engine: Engine) -> dict[tuple[str, str], Object]:
    """Through the manifests, as a person would apply them."""
    queues = [
        queue_of(yaml.safe_load(yaml.safe_dump(queue_document(queue), sort_keys=False))) for queue in imported.queues
    ]
    pools = [pool_of(yaml.safe_load(yaml.safe_dump(pool_document(pool), sort_keys=False))) for pool in imported.pools]
    objects = compile_tree(QueueTree.of(queues, pools), engine).objects
    return {(item["kind"], item["metadata"]["name"]): item for item in objects}


@given(kueue_objects())
def test_what_kueue_has_is_what_the_import_compiles_to(objects: list[Object]) -> None:
    imported = from_kueue(objects)
    empty = {text.split()[1].rstrip(":") for text in imported.skipped}
    after = compiled(imported, Engine.KUEUE)
    for item in objects:
        key = (item["kind"], item["metadata"]["name"])
        if key[1] in empty:
            assert key[0] == "Cohort"
            assert key not in after
        else:
            assert exact(after[key]["spec"]) == exact(item["spec"]), key
    assert {kind for kind, _ in after} <= {"ResourceFlavor", "Cohort", "ClusterQueue"}


@given(trees(unlimited=False))
def test_a_compiled_tree_is_imported_as_what_it_compiles_to(queues: list[KaiwoQueue]) -> None:
    kueue = compile_tree(QueueTree.of(queues), Engine.KUEUE).objects
    again = compiled(from_kueue(item for item in kueue if item["kind"] != "LocalQueue"), Engine.KUEUE)
    for item in kueue:
        if item["kind"] != "LocalQueue":
            assert exact(again[item["kind"], item["metadata"]["name"]]["spec"]) == exact(item["spec"])


QUOTAS = {"cpu": [0, 1, 500, 4000], "memory": [0, 0.5, 4, 1500.25], "gpu": [0, 0.5, 1, 8]}


@st.composite
def kai_queues(draw: Any) -> list[Object]:
    names = [f"q{number}" for number in range(draw(st.integers(1, 6)))]
    result = []
    for number, name in enumerate(names):
        parent = draw(st.sampled_from(["", *names[:number]]))
        spec: Object = {"parentQueue": parent} if parent else {}
        if draw(st.booleans()):
            spec |= {
                "priority": draw(st.integers(1, 200)),
                "displayName": f"Queue {number}",
                "reclaimMinRuntime": "5m0s",
            }
        resources = {}
        for resource in draw(st.sets(st.sampled_from(["cpu", "memory", "gpu"]))):
            quota = draw(st.sampled_from([-1, *QUOTAS[resource]]))
            more = draw(st.sampled_from(QUOTAS[resource]))
            limit = -1 if quota == -1 or draw(st.booleans()) else quota + more
            resources[resource] = {
                "quota": quota,
                "limit": limit,
                "overQuotaWeight": draw(st.sampled_from([0, 0.5, 1, 20])),
            }
        if resources:
            spec["resources"] = resources
        labels = {"kai.scheduler/node-pool": "a100"} if not parent and draw(st.integers(0, 9)) == 0 else {}
        result.append({"kind": "Queue", "metadata": {"name": name, "labels": labels}, "spec": spec})
    return result if not any(item["metadata"]["labels"] for item in result) or len(result) == 1 else result[:1]


@given(kai_queues())
def test_what_kai_has_is_what_the_import_compiles_to(objects: list[Object]) -> None:
    nothing = {"quota": 0, "limit": 0, "overQuotaWeight": 0}
    imported = from_kai(objects)
    assert not imported.skipped
    after = compiled(imported, Engine.KAI)
    for item in objects:
        found = after["Queue", item["metadata"]["name"]]
        added = f"{item['metadata']['name']}-root"
        parent = item["spec"].get("parentQueue", added if ("Queue", added) in after else None)
        resources = {
            name: {**nothing, **item["spec"].get("resources", {}).get(name, {})} for name in ("cpu", "memory", "gpu")
        }
        expected = {**item["spec"], "resources": resources, **({"parentQueue": parent} if parent else {})}
        assert found["spec"] == expected
        labels = item["metadata"]["labels"]
        assert {key: found["metadata"]["labels"].get(key) for key in labels} == labels


CONFIG = """
apiVersion: kaiwo.silogen.ai/v1alpha1
kind: KaiwoQueueConfig
metadata: {name: kaiwo}
spec:
  clusterQueues:
  - name: kaiwo
    namespaces: [team-a]
    spec:
      namespaceSelector: {}
      cohort: all
      flavorFungibility: {whenCanBorrow: Borrow, whenCanPreempt: TryNextFlavor}
      resourceGroups:
      - coveredResources: [cpu, memory, amd.com/gpu]
        flavors:
        - name: amd-mi300-8gpu
          resources:
          - {name: cpu, nominalQuota: 4000m}
          - {name: memory, nominalQuota: 4Gi}
          - {name: amd.com/gpu, nominalQuota: 8, lendingLimit: 2}
  resourceFlavors:
  - name: amd-mi300-8gpu
    nodeLabels: {kaiwo/nodepool: amd-mi300}
    taints: [{key: gpu, value: amd, effect: NoSchedule}]
  workloadPriorityClasses:
  - {metadata: {name: high}, value: 1000}
"""


def test_a_kaiwoqueueconfig_becomes_queues_and_pools(tmp_path: Any) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(CONFIG)
    done = CliRunner().invoke(app, ["queues", "import", "--engine", "kueue", "-f", str(path)])
    assert done.exit_code == 0, done.output
    pool, queue = yaml.safe_load_all(done.stdout)
    assert pool["spec"]["gpuResource"] == "amd.com/gpu"
    assert queue["spec"]["pools"][0]["resources"]["gpu"] == {"quota": 8, "guarantee": 6}
    assert "WorkloadPriorityClass high" in done.stderr
    manifest = tmp_path / "queues.yaml"
    manifest.write_text(done.stdout)
    done = CliRunner().invoke(app, ["queues", "plan", "--engine", "kueue", "-f", str(manifest), "-o", "yaml"])
    flavor, cluster_queue, local = yaml.safe_load_all(done.stdout)
    assert flavor["spec"]["nodeTaints"] == [{"key": "gpu", "value": "amd", "effect": "NoSchedule"}]
    before = yaml.safe_load(CONFIG)["spec"]["clusterQueues"][0]["spec"]
    assert exact(cluster_queue["spec"]["resourceGroups"]) == exact(before["resourceGroups"])
    assert cluster_queue["spec"]["flavorFungibility"]["whenCanBorrow"] == "MayStopSearch"
    assert (local["metadata"]["namespace"], local["spec"]) == ("team-a", {"clusterQueue": "kaiwo"})


@pytest.mark.parametrize(
    ("objects", "said"),
    [
        ([{"kind": "Cohort", "metadata": {"name": "a"}, "spec": {"parentName": "a"}}], "its own ancestor"),
        (
            [
                {"kind": "ClusterQueue", "metadata": {"name": "a"}, "spec": {"cohortName": "a"}},
                {"kind": "Cohort", "metadata": {"name": "a"}, "spec": {}},
            ],
            "a Cohort has this name too",
        ),
    ],
)
def test_what_no_kaiwoqueue_can_mean_is_left_and_named(objects: list[Object], said: str) -> None:
    assert any(said in text for text in from_kueue(objects).skipped)
