"""What a pod's owner says of its checkpoints is called a claim wherever it is shown.

Attacker: a tenant who writes ``kaiwo.ai/checkpoint-state`` and ``kaiwo.ai/last-checkpoint-time`` on its own pods.
"""

import json
from dataclasses import replace
from typing import Any

import pytest
from evictions.test_any_order import at, job, pod
from evictions.test_outcomes import played
from preemption_controller.builders import NOW_S, notes
from preemption_controller.builders import pod as seen
from preemption_controller.test_any_state import books, passes

from cli import test_why_findings as shown
from kopt.cli.cluster.evictions import _row as eviction_row
from kopt.cli.cluster.queueing.queue import answer
from kopt.cluster.checkpoints.status import members_of
from kopt.cluster.objects.custom.checkpoint import source_of
from kopt.cluster.objects.eviction import body_of, entry_of
from kopt.controllers.evictions.recorder import sentence
from kopt.controllers.overview.queues import lines, queued_of
from kopt.controllers.overview.why import why
from kopt.core.scheduling.eviction import Entry
from kopt.core.scheduling.overview import Overview
from kopt.core.workload.checkpoint import CLAIMED, Source
from kopt.dashboard.pages.cluster.view import cluster_page
from kopt.policies.preemption import RunningGang

MODEL, STATE = "kaiwo.ai/checkpoint-model", "kaiwo.ai/checkpoint-state"
LAST_TIME, OBSERVED = "kaiwo.ai/last-checkpoint-time", "kaiwo.ai/checkpoint-observed-at"
Notes = dict[str, str]


def agents(**more: str) -> Notes:
    return {
        STATE: "TRAIN",
        "kaiwo.ai/checkpoint-safe": "true",
        OBSERVED: shown.stamp(10),
        LAST_TIME: shown.stamp(90),
        "kaiwo.ai/last-checkpoint-step": "500",
        "kaiwo.ai/work-at-risk": "3600",
        MODEL: "logs/7",
    } | more


def without(found: Notes, *names: str) -> Notes:
    return {name: text for name, text in found.items() if name not in names}


CLAIMS = {
    "without the agent": {STATE: "TRAIN", LAST_TIME: shown.stamp(90)},
    "without a model": without(agents(), MODEL),
    "without a time": without(agents(), OBSERVED),
    "a write that is safe": agents() | {STATE: "CKPT_WRITING"},
    "later than the agent's word": agents() | {LAST_TIME: shown.stamp(-9000)},
}


@pytest.mark.parametrize("kind", CLAIMS)
def test_what_the_agent_cannot_have_written_is_a_claim(kind: str) -> None:
    assert source_of(CLAIMS[kind]) is Source.CLAIM


def test_the_agents_own_word_is_none() -> None:
    assert source_of(agents()) is Source.AGENT
    assert source_of({STATE: "UNKNOWN", OBSERVED: shown.stamp(), "kaiwo.ai/checkpoint-safe": "false"}) is Source.AGENT
    assert source_of({"kaiwo.ai/job": "x"}) is None


def checkpoints(found: Notes) -> Any:
    one = shown.pod(node="n1", phase="Running")
    one["metadata"]["annotations"] = found
    facts = shown.facts(shown.job(), shown.workload(state="runs"), pods=(one,))
    return next(one for one in why(facts).findings if one.code == "CHECKPOINTS")


@pytest.mark.parametrize("kind", CLAIMS)
def test_why_says_so(kind: str) -> None:
    found = checkpoints(CLAIMS[kind])
    assert CLAIMED in found.message
    assert "By its log" not in found.message
    assert (found.source, checkpoints(agents()).source) == (Source.CLAIM, Source.AGENT)
    assert CLAIMED not in checkpoints(agents()).message


def test_the_queue_says_so() -> None:
    def row(found: Notes) -> Any:
        document = shown.workload(state="runs")
        one = {
            "metadata": {
                "name": "p",
                "namespace": "team",
                "uid": "p",
                "annotations": found,
                "ownerReferences": document["metadata"]["ownerReferences"],
            }
        }
        queued = queued_of(document, {})
        assert queued is not None
        return answer(lines([queued], pods=[one], now_s=shown.NOW_S), (), shown.NOW_S).rows[0]

    assert (row(agents()).lost_gpu_seconds, row(agents()).source) == (3600, "agent")
    assert (row(CLAIMS["without a model"]).lost_gpu_seconds, row(CLAIMS["without a model"]).source) == (3600, "claim")
    assert row({}).source == ""


def test_the_ledger_keeps_it() -> None:
    def spec(found: Notes) -> Any:
        began, taken = pod("a-0", "a", 0), pod("a-0", "a", 0, disrupted=5, deleted=5)
        for event in (began, taken):
            event[1]["metadata"]["annotations"] = dict(found)
        return played([job("a", 1), began], [taken])[-1][0]["spec"]

    claim = {OBSERVED: at(4.9), "kaiwo.ai/work-at-risk": "10"}
    assert spec(claim)["checkpointSource"] == "claim"
    assert spec(claim | {MODEL: "logs/7"})["checkpointSource"] == "agent"
    assert "checkpointSource" not in spec({})


def entry(source: Source | None) -> Entry:
    found = shown.entry()
    return replace(found, eviction=replace(found.eviction, source=source))


def test_wherever_an_eviction_is_shown_it_says_so() -> None:
    for source, is_claim in ((Source.CLAIM, True), (Source.AGENT, False), (None, False)):
        one = entry(source)
        assert entry_of(body_of(one.eviction)).eviction.source is source
        page = cluster_page(Overview(now_s=shown.NOW_S, ledger=(one,)))
        finding = next(it for it in why(shown.facts(shown.job(), evictions=(one,))).findings if "EVICTED" in it.code)
        texts = (sentence(one.eviction), page.lines[0].lost, page.lost, finding.message)
        assert [CLAIMED in text for text in texts] == [is_claim] * 4
        assert eviction_row(one).source == (source or "")


@pytest.mark.parametrize(
    ("part", "field"),
    [("spec", "lostGpuSeconds"), ("spec", "lastDurableStep"), ("status", "resumedStep")],
)
def test_an_eviction_whose_numbers_are_none_cannot_be_read(part: str, field: str) -> None:
    document = body_of(entry(None).eviction)
    document.setdefault(part, {})[field] = []
    with pytest.raises(ValueError, match="cannot be read"):
        entry_of(document)


def test_verdicts_and_notices_of_a_preemption_say_so() -> None:
    claim = notes("TRAIN") | {LAST_TIME: "2999-01-01T00:00:00Z", "kaiwo.ai/last-checkpoint-step": "5"}
    for found, is_claim in ((claim, True), (notes(), False)):
        cluster = books([("safe", 4, 100, 9000)], 4)
        cluster.annotations["gang-0"] = found
        passes(cluster)
        assert cluster.taken == ["gang-0"]
        texts = json.dumps(cluster.documents)
        assert (f"{CLAIMED}." in texts, '\\"source\\":' in texts) == (is_claim, True)


def test_a_gang_knows_whose_word_its_status_is() -> None:
    found = notes("CKPT_WRITING", safe=True)
    (member,) = members_of(4000, [seen("a", 4, found)], NOW_S, 75.0)
    assert member.claimed
    gang = RunningGang("a", "q", 1, members_of(4000, [seen("a", 4, notes())], NOW_S, 75.0), 0.0)
    assert not any(one.claimed for one in gang.members)
