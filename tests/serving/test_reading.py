"""Answers are read into the dataclass that declares them, and what does not fit is named."""

from dataclasses import dataclass
from typing import Any, Literal

import pytest

from kopt.core.hardware.pairwise import Health
from kopt.serving.contract.bandwidth.pairwise_answers import PairsResponse, parse_pairwise
from kopt.serving.contract.common import AnswerError
from kopt.serving.contract.reading import added_later, read_answer

PAIR = {
    "nodes": ["a", "b"],
    "gpus_per_node": 8,
    "collective": "all_reduce",
    "measured_at": 1,
    "alpha_us": None,
    "beta_gbps": 40.5,
    "points": [{"bytes": 8, "latency_us": 20.0}],
    "software": "",
    "health": "Slow",
    "reason": "x",
    "predicted_gbps": 50,
    "low_gbps": 40.0,
    "high_gbps": None,
}


def document(**changes: Any) -> dict[str, Any]:
    whole = {
        "schema": "kopt/v1",
        "cluster": "east",
        "clusters": ["east"],
        "nodes": [{"name": "a", "health": "Healthy", "reason": "", "domains": ["rack"], "machine": None}],
        "pairs": [PAIR],
        "expected": [],
        "model": {"name": "bandwidth", "version": "1", "digest": "d"},
    }
    return whole | changes


def test_a_document_becomes_values_and_unknown_members_are_passed_over() -> None:
    answer = parse_pairwise(document(newer={"than": "this client"}))
    (pair,) = answer.pairs
    assert pair.health is Health.SLOW
    assert isinstance(pair.measured_at, float)
    assert (pair.predicted_gbps, pair.high_gbps, answer.nodes[0].domains) == (50.0, None, ("rack",))
    assert pair.pair.nodes == ("a", "b")
    assert pair.measured_gbps == pytest.approx(8 / 20.0 / 1e3 * 2 * 15 / 16)
    assert hash(answer) == hash(parse_pairwise(document()))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"schema": "kopt/v9"}, "expected a kopt/v1 document, got 'kopt/v9'"),
        ({"cluster": 3}, "cluster is '3', expected str"),
        ({"clusters": "east"}, "clusters is 'east', expected list"),
        ({"clusters": [None]}, "clusters.0 is 'None', expected str"),
        ({"model": {"name": "x", "version": "1"}}, "model.digest is missing"),
        ({"model": None}, "model is 'None', expected dict"),
        ({"pairs": [PAIR | {"health": "Ill"}]}, "pairs.0.health is 'Ill', which is no Health"),
        ({"pairs": [PAIR | {"health": ["Ill"]}]}, "pairs.0.health is .*, which is no Health"),
        ({"pairs": [PAIR | {"gpus_per_node": True}]}, "pairs.0.gpus_per_node is 'True', expected int"),
        ({"pairs": [PAIR | {"gpus_per_node": 1.5}]}, "pairs.0.gpus_per_node is '1.5', expected int"),
        ({"pairs": [PAIR | {"measured_at": "1"}]}, "pairs.0.measured_at is '1', expected float"),
        ({"pairs": [PAIR | {"measured_at": float("nan")}]}, "pairs.0: .*not finite"),
        ({"pairs": [PAIR | {"nodes": ["b", "a"]}]}, "pairs.0: .*no pair of two nodes"),
        ({"pairs": [PAIR | {"nodes": ["a"]}]}, "pairs.0: "),
        ({"pairs": [PAIR | {"points": [{"bytes": 8}]}]}, r"pairs.0.points.0.latency_us is missing"),
    ],
)
def test_what_does_not_fit_is_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(AnswerError, match=message):
        parse_pairwise(document(**changes))


@dataclass(frozen=True, kw_only=True)
class Later:
    """With members that older endpoints do not send."""

    schema: Literal["kopt/v1"] = "kopt/v1"
    counts: dict[str, int] = None  # type: ignore[assignment]
    claimed: bool = False


def test_a_member_with_a_default_may_be_missing() -> None:
    assert read_answer(Later, "/v1/later", {"schema": "kopt/v1"}) == Later()
    later = read_answer(Later, "/v1/later", {"schema": "kopt/v1", "counts": {"a": 2}, "claimed": True})
    assert (later.counts, later.claimed) == ({"a": 2}, True)
    with pytest.raises(AnswerError, match="claimed is '1', expected bool"):
        read_answer(Later, "/v1/later", {"schema": "kopt/v1", "claimed": 1})


def test_a_member_that_the_first_endpoints_did_not_send_may_be_missing() -> None:
    @dataclass(frozen=True)
    class Answer:
        claimed: bool = added_later(absent=False)
        step: int = 0

    assert read_answer(Answer, "/x", {"schema": "kopt/v1"}) == Answer(claimed=False, step=0)
    assert read_answer(Answer, "/x", {"schema": "kopt/v1", "claimed": True}).claimed
    with pytest.raises(TypeError):
        Answer()  # type: ignore[call-arg]


def test_an_empty_answer_has_an_empty_name() -> None:
    answer = parse_pairwise(document(cluster=None, clusters=[], nodes=[], pairs=[]))
    assert isinstance(answer, PairsResponse)
    assert answer.name == ""
