"""What a checkpoint folder shows: written, whole, torn, temporary, rotated."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kopt.models.checkpoint.files import FIRST_SETTLED_S, SETTLED_S, FileFact, FolderWatch

NOW = 1_000_000.0


def saved(step: int, at_s: float, *, parts: int = 3, each: int = 1000) -> list[FileFact]:
    folder = [FileFact(f"checkpoint-{step}", 4096, at_s, is_folder=True)]
    return folder + [FileFact(f"checkpoint-{step}/part{n}.pt", each, at_s + n) for n in range(parts)]


def after(*listings: tuple[float, list[FileFact]]) -> FolderWatch:
    watch = FolderWatch()
    for at_s, listing in listings:
        watch.observe(listing, at_s)
    return watch


def test_an_empty_folder_shows_nothing() -> None:
    view = after((NOW, [])).view(NOW)
    assert (view.writing, view.durable, view.step) == ("", None, None)


def test_a_checkpoint_is_durable_when_it_has_rested() -> None:
    watch = after((NOW, saved(10, NOW - 5)))
    assert watch.view(NOW).writing == "checkpoint-10"
    assert watch.view(NOW).durable is None
    later = watch.view(NOW + FIRST_SETTLED_S)
    assert (later.writing, later.step) == ("", 10)


def test_while_it_grows_it_is_being_written_and_the_one_before_counts() -> None:
    first = saved(10, NOW - 100)
    watch = after((NOW - 90, first), (NOW, first + saved(20, NOW - 4, parts=1)))
    view = watch.view(NOW)
    assert (view.writing, view.step) == ("checkpoint-20", 10)
    watch.observe(first + saved(20, NOW), NOW + 3)
    assert watch.view(NOW + 3).step == 10
    assert watch.view(NOW + 3 + SETTLED_S).step == 20


def test_a_torn_one_never_counts_however_long_it_rests() -> None:
    first = saved(10, NOW - 1000)
    torn = after((NOW - 900, first), (NOW, first + saved(20, NOW - 500, parts=2)))
    assert torn.view(NOW).step == 10
    thin = after((NOW - 900, first), (NOW, first + saved(20, NOW - 500, each=100)))
    assert thin.view(NOW).step == 10


def test_one_that_misses_parts_is_being_written_however_slowly_for_five_minutes() -> None:
    first = saved(10, NOW - 1000)
    watch = after((NOW - 900, first), (NOW - 60, first + saved(20, NOW - 70, parts=2)))
    assert watch.view(NOW).writing == "checkpoint-20"
    assert watch.view(NOW + 600).writing == "", "left behind by a run that was killed"
    watch.observe([*first, *saved(20, NOW - 70, parts=2), *saved(30, NOW)], NOW + 5)
    assert watch.view(NOW + 60).writing == "", "a later one is whole"
    assert watch.view(NOW + 60).step == 30


@pytest.mark.parametrize("path", ["checkpoint-20.tmp/a.pt", "checkpoint-20/a.pt.partial", "tmp-checkpoint-20/a.pt"])
def test_temporary_names_are_being_written(path: str) -> None:
    first = saved(10, NOW - 1000)
    watch = after((NOW - 900, first), (NOW, [*first, FileFact(path, 5000, NOW - 60)]))
    assert watch.view(NOW).writing
    assert watch.view(NOW).step == 10
    assert not watch.view(NOW + 3600).writing, "left behind by a run that was killed"


def test_logs_and_summaries_are_no_checkpoints() -> None:
    facts = [
        FileFact(one, 10, NOW) for one in ("events.out.tfevents.123", "train.log", "runs/a/model.pt", "config.yaml")
    ]
    view = after((NOW, facts)).view(NOW)
    assert (view.writing, view.durable) == ("", None)


def test_files_of_one_name_are_one_checkpoint() -> None:
    names = ("model.ckpt-10.index", "model.ckpt-10.meta", "model.ckpt-10.data-00000-of-00001")
    watch = after((NOW, [FileFact(one, 10, NOW - 60) for one in names]))
    assert [(one.name, one.files) for one in watch.units.values()] == [("model.ckpt-10", 3)]
    assert watch.view(NOW + FIRST_SETTLED_S).step == 10


def test_a_listing_that_comes_late_changes_nothing() -> None:
    watch = after((NOW, saved(20, NOW - 60)), (NOW - 50, saved(10, NOW - 300)))
    assert set(watch.units) == {"checkpoint-20"}


@given(
    st.lists(
        st.builds(
            FileFact, st.text(min_size=1, max_size=40), st.integers(0, 1 << 62), st.floats(-1e12, 1e12), st.booleans()
        ),
        max_size=30,
    ),
    st.floats(0, 1e10),
)
def test_any_listing_is_read_and_goes_on_elsewhere(listing: list[FileFact], now_s: float) -> None:
    watch = after((now_s, listing), (now_s + 1, listing))
    copy = FolderWatch.from_dict(json.loads(json.dumps(watch.to_dict())))
    assert copy.view(now_s + 100) == watch.view(now_s + 100)
    assert watch.view(now_s + 1).durable is None or watch.view(now_s + 1).durable.last_s <= now_s + 1 - SETTLED_S
