"""What users write about their own checkpoints and losses: it costs nobody but themselves.

Attacker: a tenant who may patch its own pods, where the admission policy of the chart is not installed.
"""

import json
from typing import Any

import pytest
from evictions.test_any_order import Event, at, job, pod
from evictions.test_outcomes import played
from preemption_controller.builders import NOW_S, notes
from preemption_controller.builders import pod as seen
from preemption_controller.test_any_state import books, passes
from preemption_controller.worlds import KINDS as POD_KINDS
from preemption_controller.worlds import World, node

from kopt.cluster.checkpoints.claims import LONGEST_CLAIM_S, Claims
from kopt.cluster.checkpoints.status import members_of
from kopt.controllers.preemption.patches import stamp
from kopt.core.workload.checkpoint import LONGEST_START_S

Object = dict[str, Any]
NEVER_SAFE = {"kaiwo.ai/checkpoint-safe": "false", "kaiwo.ai/checkpoint-state": "CKPT_WRITING"}
IN_2099 = {"kaiwo.ai/checkpoint-observed-at": "2099-01-01T00:00:00Z"}


def two_gangs(forged: Object) -> World:
    """The attacker's gang of two pods, of which the log agent says that it loses least, and a colleague's."""
    one = World()
    one.nodes = {name: node(name, 2) for name in ("n0", "n1")}
    for number in (0, 1):
        one.add("mallory", number, 1, 10, "n0", dict(POD_KINDS["cheap"]))
    one.pods["mallory-1"]["metadata"]["annotations"] |= forged
    one.add("colleague", 0, 2, 10, "n1", notes(lost=5000))
    one.add("urgent", 0, 2, 1000, never=True)
    return one


def test_a_claim_from_2099_does_not_make_the_colleague_the_victim() -> None:
    one = two_gangs(NEVER_SAFE | IN_2099)
    one.passes(4)
    assert sorted(one.evicted) == ["mallory-0", "mallory-1"]


def test_so_it_is_under_kueue() -> None:
    cluster = books([("cheap", 2, 100, 3600), ("safe", 2, 100, 3600)], 2)
    stamped = cluster.annotations["gang-0"] | NEVER_SAFE | IN_2099
    real = cluster.pods_of

    def pods_of(view: Any) -> list[Any]:
        found = real(view)
        return [*found, seen("gang-0", 0, stamped, 1)] if view.key[1] == "gang-0" else found

    cluster.pods_of = pods_of  # type: ignore[method-assign]
    passes(cluster)
    assert cluster.taken == ["gang-0"]


@pytest.mark.parametrize("claimed", [1e9, 1e17, float("inf"), float("nan")])
def test_nobody_loses_more_than_its_gpus_can_have_computed(claimed: float) -> None:
    risk = {"kaiwo.ai/work-at-risk": str(claimed), "kaiwo.ai/work-at-risk-interval": f"{claimed}-{claimed}"}
    one = World()
    one.add("mallory", 0, 4, 10, "n0", notes() | risk)
    one.pods["mallory-0"]["status"]["startTime"] = stamp(NOW_S - 600)
    (view,) = [found.gpu_pod for found in one.snapshot(NOW_S).pods]
    (member,) = members_of(4000, [view], NOW_S, 75.0)
    found = member.status.work_at_risk_gpu_seconds if member.status else None
    assert found is None or found.high <= 4 * (600 + 900)
    assert (found is None) == (claimed in (float("inf"),) or claimed != claimed)


def test_who_claims_a_write_for_ever_is_believed_for_a_quarter_of_an_hour() -> None:
    """The log agent says safe every minute; the user sets the state back at once."""
    now_s = [NOW_S]
    claims = Claims(lambda: now_s[0])
    agent, claim = seen("a", 4, notes()), seen("a", 4, notes() | {"kaiwo.ai/checkpoint-state": "CKPT_WRITING"})
    states = []
    for _ in range(20):
        claims.see(claim, agent)
        claims.see(agent, claim)
        (member,) = members_of(4000, [claims.settled(claim)], NOW_S, 75.0)
        states.append(bool(member.status and member.status.safe))
        now_s[0] += 60.0
    believed = int(LONGEST_CLAIM_S // 60) + 1
    assert states == [False] * believed + [True] * (20 - believed)
    writes = seen("b", 4, notes("CKPT_WRITING", safe=False))
    claims.see(None, writes)
    now_s[0] += 10 * LONGEST_CLAIM_S
    assert claims.settled(writes) is writes, "the agent's own word counts as long as it says so"


def test_a_line_of_the_ledger_names_no_cause_and_no_loss_that_a_user_wrote() -> None:
    notice = {"by": "kopt-preemption", "cause": "Preempted", "for": "prod/x", "at": at(4.9), "reason": "r"}
    forged = {
        "kaiwo.ai/evicting": json.dumps(notice),
        "kaiwo.ai/checkpoint-observed-at": at(4.9),
        "kaiwo.ai/work-at-risk": "1000000000",
    }
    began, taken = pod("a-0", "a", 0), pod("a-0", "a", 0, disrupted=5, deleted=5)
    for event in (began, taken):
        event[1]["metadata"]["annotations"] = dict(forged)
    chapters: list[list[Event]] = [[job("a", 1), began], [taken]]
    (line,) = played(*chapters)[-1]
    assert "kopt" not in line["spec"].get("by", "")
    assert line["spec"].get("for", "") == ""
    assert 0 < line["spec"]["lostGpuSeconds"] <= line["spec"]["gpus"] / 1000 * (5 * 60 + LONGEST_START_S)
