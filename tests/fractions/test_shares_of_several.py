"""Pods with the same share of several GPUs, where others read them."""

from attacks.scenarios.objects import node, pod

from kopt.cluster.workloads.sharing.nodes import gpu_pod
from kopt.controllers.overview.diagnosis.books import ClusterBooks
from kopt.controllers.overview.diagnosis.documents import ClusterDocuments
from kopt.controllers.overview.replicas import room_of

HALVES = {"kaiwo.ai/gpu-fraction": "0.5", "kaiwo.ai/gpu-count": "2"}


def test_a_claim_of_shares_of_two_gpus_is_of_two() -> None:
    document = pod("two", on="n", annotations=dict(HALVES))
    document["spec"]["containers"][0]["resources"] = {}
    document["spec"]["resourceClaims"] = [{"name": "kaiwo-gpu-share", "resourceClaimTemplateName": "t"}]
    read = gpu_pod(document)
    assert read is not None
    assert read.gpus == 2


def test_shares_of_several_gpus_are_no_pods_with_whole_ones() -> None:
    halves = pod("halves", on="n0", uid="1", annotations=dict(HALVES))
    halves["spec"]["containers"][0]["resources"] = {}
    documents = ClusterDocuments(nodes=[node("n0", 8)], pods=[halves, pod("whole", on="n0", uid="2", gpus=4)])
    assert room_of(ClusterBooks(documents), "", {}).usual == {4: 1}
