"""Live histories: whatever the order of pushes, late, restated and repeated buckets, what was last said is kept."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kopt.core.settings import Settings
from kopt.data.demand.table import GRID_S
from kopt.features.demand import COLUMN, INPUTS
from kopt.features.live import (
    KEPT_BUCKETS,
    LiveHistories,
    Record,
    RedisBackend,
    SqliteBackend,
    TooManyServicesError,
    merged,
    open_histories,
)
from kopt.features.rows import FeatureStoreError
from kopt.features.store import DemandFeatureStore

NOW = 5_668_000
"""A bucket of 2023."""
buckets = st.integers(NOW, NOW + 40) | st.integers(NOW - KEPT_BUCKETS - 20, NOW + KEPT_BUCKETS + 20)
amounts = st.none() | st.floats(0, 1e6).map(lambda amount: round(amount, 3))
pushes = st.lists(st.dictionaries(buckets, amounts, min_size=1, max_size=6), min_size=1, max_size=12)


def pushed(record: Record | None, push: dict[int, float | None]) -> tuple[Record | None, int]:
    at = np.array(list(push), dtype=np.int64)
    return merged(record, "", at, np.array([np.nan if v is None else v for v in push.values()]))


@given(pushes)
def test_the_last_value_of_each_bucket_is_kept_and_gaps_stay_gaps(history: list[dict[int, float | None]]) -> None:
    record: Record | None = None
    model: dict[int, float] = {}
    for push in history:
        before = dict(model)
        model |= {bucket: amount for bucket, amount in push.items() if amount is not None}
        newest = max(model, default=0)
        model = {bucket: amount for bucket, amount in model.items() if bucket > newest - KEPT_BUCKETS}
        record, changed = pushed(record, push)
        assert changed == sum(before.get(bucket) != amount for bucket, amount in model.items())
        if record is None:
            assert not model
            continue
        known = np.flatnonzero(np.isfinite(record.value))
        assert {record.first + int(i): float(record.value[i]) for i in known} == model
        assert known[0] == 0
        assert known[-1] == len(record.value) - 1
        assert len(record.value) <= KEPT_BUCKETS
        again, nothing = pushed(record, {bucket: amount for bucket, amount in push.items() if bucket in model})
        assert nothing == sum(push[b] is not None and model[b] != push[b] for b in push if b in model) == 0
        assert again is record


@given(pushes, st.randoms(use_true_random=False))
def test_pushes_of_different_buckets_come_in_any_order(history: list[dict[int, float | None]], random: Any) -> None:
    once = {bucket: amount for push in reversed(history) for bucket, amount in push.items()}
    near = [{b: v} for b, v in once.items() if abs(b - NOW) < 2000]
    shuffled = list(near)
    random.shuffle(shuffled)
    records = []
    for order in (near, shuffled):
        record: Record | None = None
        for push in order:
            record, _ = pushed(record, push)
        records.append(None if record is None else record.to_bytes())
    assert records[0] == records[1]


def test_a_record_outlives_its_bytes_and_nonsense_is_an_error() -> None:
    record = Record("tenant\n", NOW, np.array([1.0, np.nan, 3.0]))
    again = Record.from_bytes(record.to_bytes())
    assert (again.owner, again.first, again.newest) == ("tenant\n", NOW, NOW + 2)
    np.testing.assert_array_equal(again.value, record.value)
    for content in (b"", b"{}\n", b"[]\n", b'{"owner": "", "first": 1}\nabc'):
        with pytest.raises(FeatureStoreError):
            Record.from_bytes(content)


@pytest.fixture(params=["sqlite", pytest.param("redis", marks=pytest.mark.services)])
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[], Any]]:
    """Opens the same store again and again."""
    if request.param == "sqlite":
        yield lambda: SqliteBackend(tmp_path / "demand.db")
    else:
        url = f"redis://127.0.0.1:{request.getfixturevalue('redis_server')().port}/2"
        yield lambda: RedisBackend(url)


def merge(histories: LiveHistories, service: str, push: dict[int, float], owner: str = "") -> int:
    return histories.merge(service, owner, np.array(list(push)), np.array(list(push.values()))).changed


def test_two_replicas_see_each_others_buckets(backend: Callable[[], Any]) -> None:
    one, other = LiveHistories(backend()), LiveHistories(backend())
    assert merge(one, "ml/chat", {NOW: 5.0, NOW + 2: 7.0}) == 2
    assert merge(other, "ml/chat", {NOW + 1: 6.0, NOW + 2: 7.5}) == 2
    series = one.series(["ml/chat", "ml/absent"])
    assert list(series) == ["ml/chat"]
    np.testing.assert_array_equal(series["ml/chat"].value, [5.0, 6.0, 7.5])
    assert (series["ml/chat"].start_s, series["ml/chat"].step_s) == (NOW * GRID_S, GRID_S)
    assert series["ml/chat"].start_known
    one.close()
    other.close()


def test_one_owner_fills_half_and_silent_services_make_room(backend: Callable[[], Any]) -> None:
    histories = LiveHistories(backend(), most=4)
    merge(histories, "a1", {NOW: 1.0}, "alice")
    merge(histories, "a2", {NOW: 1.0}, "alice")
    with pytest.raises(TooManyServicesError):
        merge(histories, "a3", {NOW: 1.0}, "alice")
    assert merge(histories, "a1", {NOW + 1: 1.0}, "alice") == 1, "what is kept already goes on"
    merge(histories, "b1", {NOW: 1.0}, "bob")
    merge(histories, "b2", {NOW: 1.0}, "bob")
    with pytest.raises(TooManyServicesError):
        merge(histories, "c1", {NOW: 1.0}, "carol")
    assert histories.series(["a3", "c1"]) == {}


def _push_many(path: Path, offset: int) -> None:
    histories = LiveHistories(SqliteBackend(path))
    for i in range(50):
        merge(histories, "chat", {NOW + 2 * i + offset: float(i)})


def test_writers_on_connections_of_their_own_lose_nothing(tmp_path: Path) -> None:
    writers = [threading.Thread(target=_push_many, args=(tmp_path / "demand.db", offset)) for offset in (0, 1)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    series = LiveHistories(SqliteBackend(tmp_path / "demand.db")).series(["chat"])["chat"]
    np.testing.assert_array_equal(series.value, np.repeat(np.arange(50.0), 2))


def test_silent_services_are_forgotten_where_room_is_needed(tmp_path: Path) -> None:
    histories = LiveHistories(SqliteBackend(tmp_path / "demand.db"), most=2)
    merge(histories, "old", {NOW: 1.0})
    merge(histories, "new", {NOW + KEPT_BUCKETS: 1.0})
    merge(histories, "newer", {NOW + KEPT_BUCKETS + 1: 1.0})
    assert set(histories.series(["old", "new", "newer"])) == {"new", "newer"}


def test_the_settings_say_where_histories_are_kept(tmp_path: Path, redis_server: Any) -> None:
    histories = open_histories(Settings(home=tmp_path / "home"))
    merge(histories, "chat", {NOW: 1.0})
    assert (tmp_path / "home" / "demand.db").exists()
    server = redis_server()
    remote = open_histories(Settings(home=tmp_path, redis_url=f"redis://127.0.0.1:{server.port}/0"))
    assert remote.series(["chat"]) == {}
    server.stop()
    with pytest.raises(FeatureStoreError, match="does not answer"):
        remote.series(["chat"])


@pytest.mark.slow
def test_the_online_row_is_that_of_the_newest_bucket(store: DemandFeatureStore, daily: Any) -> None:
    series = daily(buckets=4032)
    assert store.put_online([series]) == 1
    put = store.online(["chat"], 0.0)
    store.write([series])
    store.materialise()
    written = store.online(["chat"], 0.0)
    inputs = [COLUMN[name] for name in (*INPUTS, "last_value", "floor", "max_7d", "step_s")]
    np.testing.assert_allclose(put.features[:, inputs], written.features[:, inputs], rtol=1e-9, atol=1e-9)
    np.testing.assert_array_equal(put.observed_at_s, written.observed_at_s)
