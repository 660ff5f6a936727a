"""An AIMService, and an InferenceService, are followed down to their pods, and pods up to them."""

from typing import Any

import pytest
from attacks.api_in_memory import MemoryKube

from kopt.cluster.client.resources import DEPLOYMENTS, PODS, REPLICA_SETS, Resource
from kopt.cluster.objects.kaiwo_workloads import AIM_SERVICES
from kopt.cluster.workloads.kinds import INFERENCE_SERVICES
from kopt.controllers.overview.job import Thing
from kopt.controllers.overview.reading import Reader, Wanted, is_kind

Object = dict[str, Any]
CHAIN = (AIM_SERVICES, INFERENCE_SERVICES, DEPLOYMENTS, REPLICA_SETS, PODS)
NAMES = ("chat", "chat-4f2a", "chat-4f2a-predictor", "chat-4f2a-predictor-7f9", "chat-4f2a-predictor-7f9-x")


class Cluster(MemoryKube):
    """It serves the kinds of the chain."""

    async def group_versions(self) -> set[tuple[str, str]]:
        return {(kind.group, kind.version) for kind in CHAIN}

    async def serves(self, resource: Resource) -> bool:
        return any((resource.group, resource.kind) == (kind.group, kind.kind) for kind in CHAIN)


def cluster(*, with_aim: bool) -> Cluster:
    result, owner = Cluster(), dict[str, Any]()
    for resource, name in zip(CHAIN, NAMES, strict=True):
        if resource == AIM_SERVICES and not with_aim:
            continue
        metadata = {"name": name, "namespace": "team"} | ({"ownerReferences": [owner]} if owner else {})
        made = result.put(resource, {"metadata": metadata, "spec": {}})
        owner = {"apiVersion": resource.api_version, "kind": resource.kind, "name": name, "controller": True}
        owner["uid"] = made["metadata"]["uid"]
    return result


@pytest.mark.parametrize(
    ("kind", "name", "with_aim"), [("AIMService", "chat", True), ("inferenceservice", "chat-4f2a", False)]
)
async def test_what_a_service_has_made_is_read_down_to_its_pods(kind: str, name: str, with_aim: bool) -> None:
    reader = Reader(cluster(with_aim=with_aim))  # type: ignore[arg-type]
    assert is_kind(kind)
    root = await reader.find(Wanted(name, "team", kind))
    _, pods = await reader.below(root)
    assert [pod["metadata"]["name"] for pod in pods] == [NAMES[-1]]
    above = await reader.root(Thing(PODS, pods[0]))
    assert above[-1].key == ("team", name)
