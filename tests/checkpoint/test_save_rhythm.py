"""Files alone: saves alike in a volume of the job's own, written in any order and with any pauses.

The property is what the whole rule stands for: from the first byte of a save to its end (the last of its files is there
under its name and of its size) these files never say that the job may be stopped.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from example_budget import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from kopt.models.checkpoint.files import FileFact, FolderWatch
from kopt.models.checkpoint.save_rhythm import SaveRhythm

NOW = 1_000_000.0
LOOK_S, CONFIRM_S, SETTLE_S = 5.0, 30.0, 10.0
APART_S = 15.0
"""Two saves that are nearer to each other than two looks are one to who looks."""


@dataclass(frozen=True)
class Write:
    """A file's write; ``temporary``: under another name until it is whole."""

    name: str
    size: int
    began_s: float
    took_s: float
    temporary: bool = False

    @property
    def ended_s(self) -> float:
        return self.began_s + self.took_s

    def fact(self, at_s: float) -> FileFact | None:
        """As a look at ``at_s`` shows it."""
        if at_s < self.began_s:
            return None
        share = 1.0 if at_s >= self.ended_s else 0.98 * (at_s - self.began_s) / self.took_s
        name = f"{self.name}.tmp" if self.temporary and at_s < self.ended_s else self.name
        size = int(self.size * share)
        return FileFact(name, size, min(at_s, self.ended_s), folder="out", exclusive=True)


@dataclass(frozen=True)
class Trial:
    """Saves that follow each other, each as its writes."""

    saves: tuple[tuple[Write, ...], ...]

    @property
    def intervals(self) -> list[tuple[float, float]]:
        return [(min(w.began_s for w in save), max(w.ended_s for w in save)) for save in self.saves]

    def writing(self, at_s: float) -> bool:
        return any(began_s <= at_s < ended_s for began_s, ended_s in self.intervals)

    def listing(self, at_s: float) -> list[FileFact]:
        """An overwritten file is as its last write has it."""
        facts: dict[str, FileFact] = {}
        for save in self.saves:
            for write in save:
                if (fact := write.fact(at_s)) is not None:
                    facts[fact.path] = fact
        return list(facts.values())

    def looks(self, look_s: float = LOOK_S) -> Iterator[tuple[float, FolderWatch]]:
        """The watch after each look, as the log agent reports them."""
        watch, before, at_s = FolderWatch(), None, NOW - 60.0
        sent_at_s = changed_at_s = at_s
        while at_s < self.intervals[-1][1] + 400.0:
            listing = self.listing(at_s)
            if before is None or listing != before:
                watch.observe(listing, at_s)
                before, sent_at_s, changed_at_s = listing, at_s, at_s
            elif at_s - sent_at_s >= (SETTLE_S if at_s - changed_at_s < 4 * SETTLE_S else CONFIRM_S):
                watch.confirm(at_s)
                sent_at_s = at_s
            yield at_s, watch
            at_s += look_s


@st.composite
def trials(draw: st.DrawFn, *, regular: bool) -> Trial:
    """Saves of the same files in any order. The first four come at about the same distance, without long pauses; the
    others likewise where ``regular``, else at any time, with any pauses."""
    names = ["model", "optim", "rank0", "rank1", "best"]
    parts = draw(st.lists(st.sampled_from(names), min_size=1, max_size=4, unique=True))
    every_s = draw(st.floats(150.0, 900.0))
    numbered, temporary = draw(st.booleans()), draw(st.booleans())
    saves, at_s = [], NOW
    for number in range(draw(st.integers(5, 7))):
        usual = regular or number < 4
        saves.append(tuple(draw(writes(parts, number if numbered else None, at_s, usual=usual, temporary=temporary))))
        ended_s = max(write.ended_s for write in saves[-1])
        early = not regular and number >= 3
        at_s = ended_s + draw(st.floats(APART_S, every_s)) if early else at_s + every_s * draw(st.floats(1.0, 1.05))
    return Trial(tuple(saves))


@st.composite
def writes(
    draw: st.DrawFn, parts: list[str], number: int | None, at_s: float, *, usual: bool, temporary: bool
) -> list[Write]:
    """The writes of a save, one after the other; the ``usual`` ones pause shortly, others for as long as they like."""
    result = list[Write]()
    for part in draw(st.permutations(parts)):
        took_s = draw(st.floats(0.1, 10.0 if usual else 100.0))
        name = f"{part}-last.pt" if number is None else f"{part}-step{number}.pt"
        result.append(Write(name, 10_000 + 1000 * len(part), at_s, took_s, temporary))
        at_s += took_s + draw(st.floats(0.0, 8.0 if usual else 500.0))
    return result


@settings(max_examples=examples(80), deadline=None)
@given(trials(regular=False))
def test_a_look_never_shows_a_save_under_way_as_ended_whatever_its_order_and_pauses(trial: Trial) -> None:
    for at_s, watch in trial.looks():
        if trial.writing(at_s):
            assert watch.doubt_alone(at_s), f"called safe {at_s - NOW:.1f} s after the first save began"


@settings(max_examples=examples(80), deadline=None)
@given(trials(regular=True), st.floats(0.0, 1.0))
def test_no_moment_of_a_regular_save_is_safe_and_most_between_two_are(trial: Trial, share: float) -> None:
    safe = 0
    for at_s, watch in trial.looks():
        moment_s = at_s + share * LOOK_S
        doubt = watch.doubt_alone(moment_s)
        assert doubt or not trial.writing(moment_s), f"called safe {moment_s - NOW:.1f} s after the first save began"
        safe += not doubt
    assert safe, "a job that saves regularly is never safe"


def regular(count: int = 5, every_s: float = 300.0, parts: tuple[str, ...] = ("model", "optim")) -> Trial:
    return Trial(
        tuple(
            tuple(
                Write(f"{part}-step{number}.pt", 5000, NOW + number * every_s + 4 * at, 3.0)
                for at, part in enumerate(parts)
            )
            for number in range(count)
        )
    )


def last_look(trial: Trial, until_s: float) -> tuple[float, FolderWatch]:
    """The last look so many seconds after the first save began."""
    return next((at_s, watch) for at_s, watch in trial.looks() if at_s > NOW + until_s - LOOK_S)


def doubts(trial: Trial) -> dict[int, str]:
    """By seconds since the first save began."""
    return {round(at_s - NOW): watch.doubt_alone(at_s) for at_s, watch in trial.looks()}


def test_files_alone_tell_after_three_saves_until_the_next_is_due() -> None:
    by_second = doubts(regular())
    assert not any(not doubt for at, doubt in by_second.items() if at < 600), "before the third save has ended"
    assert by_second[640] == by_second[845] == ""
    assert "is due" in by_second[860]
    assert "is being written" in by_second[910]
    assert by_second[940] == ""
    assert "is due" in by_second[1500], "it never came"


def test_a_save_that_misses_a_file_has_not_ended_however_long_it_rests() -> None:
    saves = regular().saves
    torn = (*saves[:4], saves[4][:1])
    by_second = doubts(Trial(torn))
    assert by_second[1100] == ""
    assert all(by_second[at] for at in by_second if at >= 1200)


def test_files_of_another_job_and_those_gone_with_the_pod_tell_nothing() -> None:
    for change in ({"exclusive": False}, {"ephemeral": True}):
        watch = FolderWatch()
        for at_s, _ in (trial := regular()).looks():
            facts = trial.listing(at_s)
            watch.observe(
                [
                    FileFact(f.path, f.size_bytes, f.modified_at_s, folder="out", **{"exclusive": True} | change)
                    for f in facts
                ],
                at_s,
            )
            assert watch.doubt_alone(at_s)


def test_saves_at_no_regular_time_may_begin_at_any_moment() -> None:
    times = (0.0, 300.0, 420.0, 1020.0, 1140.0)
    saves = tuple((Write("best-model.pt", 5000, NOW + at, 3.0),) for at in times)
    by_second = doubts(Trial(saves))
    assert all(by_second.values())
    assert "no regular time" in by_second[1200]


def test_what_was_written_before_the_first_look_is_no_save() -> None:
    watch = FolderWatch()
    for number, at_s in enumerate((NOW, NOW + 300.0, NOW + 600.0)):
        watch.observe([FileFact(f"model-{n}.pt", 10, NOW - 900.0 + n, exclusive=True) for n in range(9)], at_s)
        assert not watch.rhythm.saves, number


def test_a_checkpoint_that_was_removed_holds_the_job() -> None:
    trial = regular()
    at_s, watch = last_look(trial, 1000.0)
    assert watch.doubt_alone(at_s) == ""
    watch.observe([fact for fact in trial.listing(at_s) if "step3" not in fact.path], at_s + 5.0)
    assert watch.doubt_alone(at_s + 5.0)
    watch.confirm(at_s + 60.0)
    assert watch.doubt_alone(at_s + 60.0) == "Files of the last save are gone."


def test_without_looks_nothing_is_shown() -> None:
    at_s, watch = last_look(regular(), 1100.0)
    assert watch.doubt_alone(at_s) == ""
    assert "lately" in watch.doubt_alone(at_s + 60.0)


@pytest.mark.parametrize("after_s", [602.0, 650.0, 1100.0])
def test_a_rhythm_goes_on_elsewhere(after_s: float) -> None:
    at_s, watch = last_look(regular(), after_s)
    copy = FolderWatch.from_dict(json.loads(json.dumps(watch.to_dict())))
    assert copy.to_dict() == watch.to_dict()
    assert copy.doubt_alone(at_s) == watch.doubt_alone(at_s)
    older = {name: value for name, value in watch.to_dict().items() if name != "rhythm"}
    assert FolderWatch.from_dict(older).rhythm.to_dict() == SaveRhythm().to_dict()
