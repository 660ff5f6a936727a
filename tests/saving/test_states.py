"""Who was asked, who has saved, and when waiting is over: on drawn pods, and on annotations as they are written."""

import dataclasses
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kopt.agents.logtail.annotator import LAST_TIME, STATE, annotations_of
from kopt.cluster.holds.checkpoint_request import is_askable, request_of, request_patch, saving_by, saving_of
from kopt.core.workload.checkpoint import JobState
from kopt.core.workload.checkpoint_request import ASKABLE_ANNOTATION, REQUEST_ANNOTATION, PodSaving, SaveRequest
from kopt.core.workload.save_state import SaveState, save_state, unasked

NOW_S = 1_900_000_000.0
moments = st.integers(-5, 5).map(lambda more: NOW_S + more)


@st.composite
def drawn(draw: st.DrawFn) -> PodSaving:
    asked_s = draw(st.none() | moments)
    until_s = None if asked_s is None else asked_s + draw(st.integers(0, 6))
    return PodSaving(
        draw(st.sampled_from([True, True, True, False])),
        asked_s,
        until_s,
        draw(st.none() | moments),
        draw(st.sampled_from(list(JobState))),
    )


pods = st.lists(drawn(), max_size=4)


@given(pods, moments, moments)
def test_a_state_means_what_it_says(views: list[PodSaving], now_s: float, since_s: float) -> None:
    state, left = save_state(views, now_s, since_s), unasked(views, since_s)
    if state is SaveState.UNASKABLE:
        assert not views or not all(one.askable for one in views)
        return
    assert all(one.askable for one in views)
    if state is SaveState.SAVED:
        for one in views:
            assert one.last_durable_at_s is not None
            assert one.requested_at_s is not None
            assert one.last_durable_at_s >= one.requested_at_s
            assert one.state is not JobState.CKPT_WRITING
    assert any(left) or state is not SaveState.ASKABLE
    assert not any(left) or state in (SaveState.ASKABLE, SaveState.EXPIRED)
    waited = [one.until_s for one, still in zip(views, left, strict=True) if not still and one.until_s is not None]
    if state is SaveState.ASKED:
        assert now_s < max(waited)
    if state is SaveState.EXPIRED:
        assert now_s >= max(waited)


@given(pods, moments)
def test_it_does_not_depend_on_the_order(views: list[PodSaving], now_s: float) -> None:
    assert save_state(views, now_s) is save_state(views[::-1], now_s)


@given(pods, moments, st.integers(0, 100))
def test_waiting_always_ends(views: list[PodSaving], now_s: float, later_s: int) -> None:
    # Drawn deadlines are at most 16 s after the earliest drawn time.
    if save_state(views, now_s) is SaveState.ASKED:
        assert save_state(views, now_s + 16 + later_s) is SaveState.EXPIRED


@given(pods, moments)
def test_who_is_asked_is_asked_once(views: list[PodSaving], since_s: float) -> None:
    asked = [
        dataclasses.replace(one, requested_at_s=NOW_S, until_s=NOW_S + 99) if still else one
        for one, still in zip(views, unasked(views, since_s), strict=True)
    ]
    assert not any(unasked(asked, since_s))
    assert save_state(asked, NOW_S, since_s) is not SaveState.ASKABLE


milliseconds = st.integers(0, 10_000).map(lambda number: number / 1000)


@given(milliseconds, milliseconds, milliseconds, st.text(max_size=20))
def test_a_checkpoint_from_before_the_request_is_no_answer(
    more_s: float, budget_s: float, before_s: float, reason: str
) -> None:
    """Stamps of checkpoints are whole seconds, rounded down."""
    now_s = NOW_S + more_s
    pod = {
        "metadata": {
            "annotations": {
                ASKABLE_ANNOTATION: "true",
                **request_patch("us", reason, now_s, now_s + budget_s)["metadata"]["annotations"],
            }
        }
    }
    asked = request_of(pod)
    assert asked is not None
    assert now_s <= asked.at_s < now_s + 1
    assert asked.at_s <= asked.until_s
    assert asked.until_s < now_s + budget_s + 1
    assert (asked.by, asked.reason) == ("us", reason)
    for durable_s, saved in ((now_s - before_s, False), (asked.at_s + before_s, True)):
        notes = annotations_of({"state": "TRAIN", "last_durable_at": durable_s}, now_s)
        pod["metadata"]["annotations"] |= {name: text for name, text in notes.items() if text is not None}
        # Exactly at a whole second before and after are the same.
        if saved or math.floor(durable_s) < asked.at_s:
            assert (save_state([saving_of(pod)], asked.at_s - 1) is SaveState.SAVED) is saved


def test_a_write_that_is_under_way_is_waited_for() -> None:
    asked = PodSaving(True, NOW_S, NOW_S + 60, NOW_S + 5, JobState.CKPT_WRITING)
    assert save_state([asked], NOW_S + 10) is SaveState.ASKED
    assert save_state([dataclasses.replace(asked, state=JobState.CKPT_DONE)], NOW_S + 10) is SaveState.SAVED


def test_what_was_asked_for_another_before_does_not_count() -> None:
    before = PodSaving(True, NOW_S - 600, NOW_S - 300, NOW_S - 500, JobState.TRAIN)
    assert save_state([before], NOW_S) is SaveState.SAVED
    assert save_state([before], NOW_S, since_s=NOW_S - 100) is SaveState.ASKABLE


def test_the_names_are_those_that_the_log_agent_writes() -> None:
    notes = {STATE: "CKPT_DONE", LAST_TIME: "2030-03-17T17:46:40Z", ASKABLE_ANNOTATION: "true"}
    assert saving_by(notes) == PodSaving(True, None, None, NOW_S, JobState.CKPT_DONE)


@pytest.mark.parametrize(
    "text",
    [
        None,
        7,
        "",
        "null",
        "[]",
        "{}",
        "{",
        '{"at": 5, "until": "2030-01-01T00:00:00Z"}',
        '{"at": "2030-01-01T00:00:00Z"}',
        '{"at": "soon", "until": "later"}',
        "[" * 100_000,
    ],
)
def test_what_is_no_request_is_none(text: object) -> None:
    assert SaveRequest.from_text(text) is None
    assert saving_by({REQUEST_ANNOTATION: text, STATE: text, LAST_TIME: text, ASKABLE_ANNOTATION: text}) == PodSaving()


def test_a_pod_without_annotations_cannot_be_asked() -> None:
    assert not is_askable({"metadata": {}})
    assert request_of({"metadata": {}}) is None
    assert saving_of({"metadata": {"annotations": None}}) == PodSaving()
