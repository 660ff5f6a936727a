"""What a NodeHealth says reaches the extender's choice: suspect GPUs and nodes are avoided, and a lower score costs."""

import pytest

from kopt.cluster.runtime.informer import Change, ChangeKind
from kopt.cluster.workloads.placement.node_complaints import of_health
from tests.extender.test_degraded_nodes import Object, Scene


def health(name: str, score: float, gpus: dict[str, str], mode: str = "annotate", grade: str = "Suspect") -> Object:
    listed = [{"gpu": gpu, "verdict": word, "load": 0.7} for gpu, word in gpus.items()]
    status = {"verdict": grade, "score": score, "mode": mode, "gpuCount": 8, "gpus": listed, "reason": "XID 94"}
    return {"apiVersion": "kaiwo.ai/v1alpha1", "kind": "NodeHealth", "metadata": {"name": name}, "status": status}


class Judged(Scene):
    def health(self, document: Object) -> None:
        name = document["metadata"]["name"]
        complaint = of_health(document)
        self.extender.health_changed(Change(ChangeKind.UPDATED, ("", name), None, complaint))


async def test_pods_on_several_gpus_avoid_a_suspect_node_and_are_told_why() -> None:
    scene = Judged()
    scene.health(health("a", 0.3, {"3": "Suspect"}))
    assert scene.offer("first", 4)["NodeNames"] == ["b"]
    assert scene.told("first")["DEGRADED_AVOIDED"] == "Node a is degraded and was avoided: XID 94."
    # A pod on one GPU of it gets a healthy one.
    scene.offer("fills", 4)
    assert scene.offer("one", 1, "a")["NodeNames"] == ["a"]
    decision = scene.extender.log.find(("ns", "one"))
    assert decision is not None
    assert 3 not in decision.placement.choice.gpus


@pytest.mark.parametrize("ill", ["a", "b"])
async def test_a_pod_on_one_gpu_goes_to_the_healthier_node(ill: str) -> None:
    """The node itself is suspect, and none of its GPUs alone: nothing but the score tells the two apart."""
    scene = Judged()
    scene.health(health(ill, 0.3, {"": "Suspect"}))
    assert scene.offer("first", 1)["NodeNames"] == ["b" if ill == "a" else "a"]
    decision = scene.extender.log.find(("ns", "first"))
    assert decision is not None
    assert decision.placement.choice.impaired == ()


async def test_in_mode_observe_nobody_goes_by_it_and_recovery_ends_it() -> None:
    scene = Judged()
    scene.health(health("a", 0.0, {"3": "Condemned"}, mode="observe", grade="Condemned"))
    assert scene.extender.fleet.complaints.text("a") == ""
    scene.health(health("a", 0.0, {"3": "Condemned"}, grade="Condemned"))
    assert scene.extender.fleet.complaints.score("a") == 0.0
    scene.health(health("a", 1.0, {}, grade="Healthy"))
    assert (scene.extender.fleet.complaints.degraded("a"), scene.extender.fleet.complaints.score("a")) == (False, 1.0)
