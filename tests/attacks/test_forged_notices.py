"""What tenants write on their own pods in our name: it must not stop anybody, nor have anybody evicted.

Attacker: another tenant with the right to create and patch pods in a namespace of its own, or one that it shares.
"""

import json

import pytest
from preemption_controller.builders import notes
from preemption_controller.kai_worlds import KaiWorld, full
from preemption_controller.worlds import KINDS, World, fresh, node

from kopt.cluster.admission.review import Review
from kopt.cluster.objects.seals import SEAL, Seal
from kopt.controllers.preemption.kai.scheduling_gates import Gating
from kopt.controllers.preemption.patches import stamp
from kopt.core.decision import Mode

NOTICE, DECISION, REQUEST = "kaiwo.ai/evicting", "kaiwo.ai/preemption", "kaiwo.ai/save-requested"


def colleagues(*kinds: str) -> World:
    """A gang of four GPUs on each node, and one that waits for four; the attacker's pods are on a node of their own."""
    one = World()
    one.nodes = {f"n{number}": node(f"n{number}", 4) for number in range(len(kinds))}
    for number, kind in enumerate(kinds):
        one.add(f"gang-{number}", 0, 4, 10, f"n{number}", dict(KINDS[kind]))
    one.add("urgent", 0, 4, 1000, never=True)
    return one


def forged(one: World, waiting: str = "team/urgent", **more: object) -> str:
    return json.dumps(
        {
            "by": "kopt-preemption",
            "cause": "Preempted",
            "for": waiting,
            "at": stamp(one.now_s - 1),
            "reason": "because",
            "pods": 3,
            **more,
        }
    )


def leaving(one: World, name: str) -> None:
    """A pod of the attacker's that was deleted, and has a finalizer."""
    one.pods[name]["metadata"] |= {"deletionTimestamp": stamp(one.now_s), "deletionGracePeriodSeconds": 0}


def test_a_terminating_pod_with_a_notice_does_not_stop_pre_emption() -> None:
    one = colleagues("safe", "cheap")
    one.add("mallory", 0, 4, 10, "mallory", {NOTICE: forged(one, "team/nobody")})
    leaving(one, "mallory-0")
    one.refuses = {"mallory-0"}
    one.passes(4)
    assert one.evicted == ["gang-1-0"]


@pytest.mark.parametrize("copied", ["label", "owner"])
def test_a_pod_that_joins_a_gang_in_a_write_does_not_have_it_evicted(copied: str) -> None:
    """By the label of its JobSet, or by naming its Job as the owner: the notice says that one of three is gone."""
    one = colleagues("writing", "silent")
    one.add("mallory", 0, 4, 10, "mallory", {NOTICE: forged(one)})
    label = {"jobset.sigs.k8s.io/jobset-name": "training"}
    one.pods["gang-0-0"]["metadata"]["labels"] = one.pods["mallory-0"]["metadata"]["labels"] = label
    one.sets = {"job-gang-0": "the set of the colleague"}
    if copied == "owner":
        one.pods["mallory-0"]["metadata"]["ownerReferences"] = one.pods["gang-0-0"]["metadata"]["ownerReferences"]
    leaving(one, "mallory-0")
    for _ in range(4):
        one.passes(2)
        one.now_s += 5
    assert "gang-0-0" not in one.evicted


@pytest.mark.parametrize("how", ["copied", "edited", "of another key"])
def test_a_proof_holds_for_its_own_pod_text_and_key_alone(how: str) -> None:
    one = colleagues("writing", "cheap")
    one.dies(3)
    told = one.pods["gang-1-0"]["metadata"]
    real = told["annotations"].pop(NOTICE)
    assert SEAL.opened(NOTICE, told["uid"], real) is not None
    uid, text = one.pods["gang-0-0"]["metadata"]["uid"], real
    if how == "edited":
        uid, text = told["uid"], json.dumps(json.loads(real) | {"pods": 9})
    elif how == "of another key":
        text = Seal(b"k" * 32).sealed(NOTICE, uid, json.loads(real))
    assert SEAL.opened(NOTICE, uid, text) is None


def test_an_own_notice_of_yesterday_that_is_put_back_stops_nobody() -> None:
    one = colleagues("safe", "cheap")
    one.add("mallory", 0, 4, 10, "mallory")
    uid = one.pods["mallory-0"]["metadata"]["uid"]
    old = json.loads(forged(one, "team/nobody")) | {"at": stamp(one.now_s - 86_400)}
    one.pods["mallory-0"]["metadata"]["annotations"][NOTICE] = SEAL.sealed(NOTICE, uid, old)
    leaving(one, "mallory-0")
    one.passes(4)
    assert one.evicted == ["gang-1-0"]


def test_a_pod_that_never_ends_is_waited_for_no_longer_than_a_quarter_of_an_hour() -> None:
    """It was told by us, has asked for years to end, and keeps its finalizer."""
    one = colleagues("cheap", "safe")
    one.passes(4)
    assert one.evicted == ["gang-0-0"]
    one.pods["gang-0-0"]["metadata"] |= {
        "deletionTimestamp": stamp(one.now_s + 1e8),
        "deletionGracePeriodSeconds": 10**8,
    }
    one.add("next", 0, 4, 900, never=True)
    one.now_s += 1000
    one.pods["gang-1-0"]["metadata"]["annotations"] |= notes(now_s=one.now_s)
    one.passes(4)
    assert one.evicted == ["gang-0-0", "gang-1-0"]


def test_taking_the_notice_away_does_not_keep_a_pod() -> None:
    one = colleagues("cheap", "silent")
    real, tells = one.patch, list[str]()

    async def patch(pod: object, changes: dict[str, dict[str, dict[str, object]]]) -> None:
        await real(pod, changes)  # type: ignore[arg-type]
        notes = one.pods["gang-0-0"]["metadata"]["annotations"]
        if changes["metadata"]["annotations"].get(NOTICE) and notes.pop(NOTICE, None):
            tells.append("gang-0-0")

    one.patch = patch  # type: ignore[method-assign, assignment]
    one.passes(4)
    assert one.evicted == ["gang-0-0"]
    assert tells == ["gang-0-0"]


def test_the_last_look_asks_the_api_server_and_not_the_informers() -> None:
    """A write begins after the informers' last news."""
    one = colleagues("cheap", "silent")
    one.dies(3)
    behind = one.snapshot(one.now_s)
    one.snapshot = lambda now_s: behind  # type: ignore[method-assign]
    one.pods["gang-0-0"]["metadata"]["annotations"] |= KINDS["writing"]
    one.passes(1)
    assert one.evicted == []


def test_a_gang_of_which_a_pod_went_is_not_finished_in_a_write() -> None:
    one = World()
    one.nodes = {name: node(name, 1) for name in ("n0", "n1")}
    for number in (0, 1):
        one.add("gang-0", number, 1, 10, f"n{number}", dict(KINDS["cheap"]))
    one.add("urgent", 0, 1, 1000, never=True)
    # Decision, promise, two notices, one eviction.
    one.dies(5)
    assert len(one.evicted) == 1
    (left,) = {"gang-0-0", "gang-0-1"} - set(one.evicted)
    one.pods[left]["metadata"]["annotations"] |= KINDS["writing"]
    one.passes(2)
    assert len(one.evicted) == 1
    one.pods[left]["metadata"]["annotations"] |= KINDS["cheap"]
    one.passes(2)
    assert len(one.evicted) == 2


def test_a_decision_that_a_user_wrote_names_no_victims() -> None:
    """The waiting pod names its victims; one of them is the attacker's own, and has a notice."""
    one = colleagues("cheap", "safe")
    said = {"verdict": "preempt", "at": stamp(one.now_s - 8), "victims": ["team/gang-0", "team/gang-1"]}
    one.pods["urgent-0"]["metadata"]["annotations"][DECISION] = json.dumps(said)
    one.pods["gang-0-0"]["metadata"]["annotations"][NOTICE] = forged(one, pods=1)
    one.passes(4)
    assert one.evicted == ["gang-0-0"]
    assert NOTICE not in one.pods["gang-1-0"]["metadata"]["annotations"]


def test_a_request_to_save_that_a_user_wrote_keeps_nobody_waiting() -> None:
    one = colleagues("safe", "cheap")
    asked = {"at": stamp(one.now_s), "until": "2099-01-01T00:00:00Z", "by": "kopt-preemption", "for": "team/urgent"}
    mine = {"kaiwo.ai/saves-on-request": "true", REQUEST: json.dumps(asked)}
    one.pods["gang-0-0"]["metadata"]["annotations"] |= mine
    fresh(one)
    one.passes(4)
    assert one.evicted == ["gang-1-0"]


def test_a_decision_that_a_user_wrote_gates_nobody_under_kai() -> None:
    """The attacker's pod is held, and says that room is made for it for ever; a colleague's comes."""
    one = full("safe", "safe", "safe")
    held = one.pods["urgent-0"]["metadata"]["annotations"]
    held[DECISION] = json.dumps(
        {"verdict": "preempt", "at": stamp(one.now_s - 1), "until": "2099-01-01T00:00:00Z", "victims": ["team/nobody"]}
    )
    assert isinstance(one, KaiWorld)
    one.nodes["free"] = node("free", 4)
    one.add("colleague", 0, 4, 500, never=True)
    pod = one.pods.pop("colleague-0")
    pod["spec"].pop("schedulingGates")
    pod["metadata"] |= {"labels": {"kai.scheduler/queue": "team"}, "annotations": {}}
    gating = Gating(one, Mode.ENFORCE, lambda: one.now_s)  # type: ignore[arg-type]
    review = Review("1", "", "Pod", "team", "colleague-0", "CREATE", dry_run=False, user="", groups=(), object=pod)
    assert not gating.answer(review).patch
