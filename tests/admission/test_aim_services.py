"""What is said on an AIMService holds for the InferenceService that is made of it, and nothing else is taken over."""

import copy
from typing import Any

import orjson
import pytest
from admission.conftest import Webhooks
from admission.patching import patched
from admission.submitting import labelled, placed
from admission.workloads import Object, every_kind, review

from kopt.cluster.admission.review import parse_review
from kopt.cluster.workloads.requests.external import ObjectRef
from kopt.cluster.workloads.workload import NamespaceDefaults
from kopt.controllers.admission.evaluation import FixedState
from kopt.controllers.admission.handlers import Admissions
from kopt.controllers.admission.policy import parse_policy

QUEUE, PRIORITY = "kueue.x-k8s.io/queue-name", "kueue.x-k8s.io/priority-class"
SAID = {"labels": {QUEUE: "serving", PRIORITY: "gold", "team": "a"}, "annotations": {"kaiwo.ai/class": "inference"}}


def aim_service(group: str = "aim.eai.amd.com", uid: str = "u1", **metadata: Any) -> Object:
    return {
        "apiVersion": f"{group}/v1alpha1",
        "kind": "AIMService",
        "metadata": {"name": "chat", "namespace": "team", "uid": uid} | copy.deepcopy(metadata or SAID),
        "spec": {"model": {"name": "llama"}},
    }


def made_of(maker: Object, **metadata: Any) -> Object:
    document = next(item for item in every_kind("chat-4f2a", gpus=2) if item["kind"] == "InferenceService")
    owner = {"apiVersion": maker["apiVersion"], "kind": "AIMService", "controller": True}
    owner |= {key: maker["metadata"][key] for key in ("name", "uid")}
    document["metadata"] |= {"ownerReferences": [owner]} | metadata
    return document


class Cluster:
    """The objects that the API server has."""

    def __init__(self, *documents: Object) -> None:
        self.documents = {(item["apiVersion"], item["metadata"]["name"]): item for item in documents}
        self.reads = 0

    async def read_namespace(self, name: str) -> NamespaceDefaults | None:
        return NamespaceDefaults()

    async def read(self, location: ObjectRef) -> Object | None:
        self.reads += 1
        resource = location.resource
        return self.documents.get((f"{resource.group}/{resource.version}", location.name))


async def admitted(workload: Object, cluster: Cluster, mode: str = "enforce", operation: str = "CREATE") -> Object:
    policy = parse_policy({"metadata": {"name": "default"}, "spec": {"mode": mode, "queues": {"default": "rest"}}})
    admissions = Admissions(FixedState(policy, existing_queues=[("team", "serving"), ("team", "rest")]), reader=cluster)
    request = parse_review(orjson.dumps(review(workload, operation=operation)))
    answer = admissions.mutate_at_once(request) or await admissions.mutate(request)
    assert not answer.answer.refusal
    return patched(workload, answer.answer.patch)


@pytest.mark.parametrize("group", ["aim.eai.amd.com", "aim.silogen.ai"])
@pytest.mark.parametrize("mode", ["annotate", "enforce"])
async def test_queue_priority_and_class_reach_the_inference_service(group: str, mode: str) -> None:
    maker = aim_service(group)
    metadata = (await admitted(made_of(maker), Cluster(maker), mode))["metadata"]
    assert (metadata["labels"][QUEUE], metadata["labels"][PRIORITY]) == ("serving", "gold")
    assert metadata["annotations"]["kaiwo.ai/class"] == "inference"
    assert "team" not in metadata["labels"], "other people's labels are passed on by AIM Engine, where it is told to"


async def test_what_the_inference_service_says_itself_stays() -> None:
    maker = aim_service()
    result = await admitted(made_of(maker, labels={QUEUE: "rest"}), Cluster(maker))
    assert result["metadata"]["labels"][QUEUE] == "rest"


async def test_an_aim_service_that_asks_to_be_only_observed_is() -> None:
    maker = aim_service(annotations={"kaiwo.ai/mode": "observe"}, labels={QUEUE: "serving"})
    document = made_of(maker)
    assert await admitted(document, Cluster(maker), "annotate") == document


async def test_without_the_aim_service_the_rules_go_by_the_inference_service_alone() -> None:
    maker = aim_service()
    for cluster in (Cluster(), Cluster(aim_service(uid="u2"))):
        result = await admitted(made_of(maker), cluster)
        assert result["metadata"]["labels"][QUEUE] == "rest"
        assert PRIORITY not in result["metadata"]["labels"]


async def test_an_opt_out_is_not_passed_on_as_the_right_to_it_is_of_who_writes_the_object() -> None:
    maker = aim_service(annotations={"kaiwo.ai/opt-out": "true"}, labels={QUEUE: "serving"})
    result = await admitted(made_of(maker), Cluster(maker))
    assert "kaiwo.ai/opt-out" not in result["metadata"].get("annotations", {})
    assert result["metadata"]["labels"][QUEUE] == "serving"


async def test_the_aim_service_is_read_for_what_is_new_and_made_of_one_alone() -> None:
    maker = aim_service()
    cluster = Cluster(maker)
    await admitted(made_of(maker), cluster, operation="UPDATE")
    plain = next(item for item in every_kind("plain", gpus=2) if item["kind"] == "InferenceService")
    await admitted(plain, cluster)
    assert cluster.reads == 0
    await admitted(made_of(maker), cluster)
    assert cluster.reads == 1


def test_an_inference_service_has_the_queue_that_its_aim_service_names_also_as_it_is_applied_again(
    webhooks: Webhooks,
) -> None:
    """AIM Engine applies it on the server's side at each of its passes."""
    webhooks.plane.install_crds("kserve", "kaiwo")
    webhooks.policy(mode="enforce", queues={"default": "rest"})
    space = webhooks.namespace()
    webhooks.seen(space, labelled)
    labels = {QUEUE: "serving", "kaiwo.ai/class": "inference"}
    metadata = {"name": "chat", "namespace": space, "labels": labels}
    spec = {"model": {"name": "llama"}, "replicas": 2}
    version = "aim.eai.amd.com/v1alpha1"
    maker = webhooks.api.create({"apiVersion": version, "kind": "AIMService", "metadata": metadata, "spec": spec})
    owner = {"apiVersion": version, "kind": "AIMService", "name": "chat", "uid": maker["metadata"]["uid"]}
    made = placed(next(item for item in every_kind("chat-4f2a") if item["kind"] == "InferenceService"), space)
    made["metadata"] |= {
        "labels": {"aim.eai.amd.com/service": "chat"},
        "ownerReferences": [owner | {"controller": True, "blockOwnerDeletion": True}],
    }
    for replicas in (2, 3):
        made["spec"]["predictor"]["minReplicas"] = replicas
        result = webhooks.api.apply(made)
        assert result["spec"]["predictor"]["minReplicas"] == replicas
        assert labels.items() <= result["metadata"]["labels"].items()
