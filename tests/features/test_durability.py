"""Full disks, torn files, crashes and readers beside writers leave old or new rows, never half of them."""

import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kopt.data.demand.table import DemandSeries
from kopt.features.demand import COLUMN
from kopt.features.offline import file_of
from kopt.features.rows import FeatureStoreError
from kopt.features.store import DemandFeatureStore

Daily = Callable[..., DemandSeries]
LAST = COLUMN["last_value"]

FULL_DISK = """
import pathlib, resource, sys
import numpy as np
from kopt.core.settings import Settings
from kopt.data.demand.table import DemandSeries
from kopt.features.rows import FeatureStoreError
from kopt.features.store import DemandFeatureStore
store = DemandFeatureStore(Settings(home=pathlib.Path(sys.argv[1])))
series = DemandSeries("chat", 1.7e9, 300, np.random.default_rng(1).random(600), start_known=True)
# Python would keep what it compiles cut off at the limit, for everybody.
sys.dont_write_bytecode = True
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[3]), -1))
try:
    store.write([series]) if sys.argv[2] == "write" else store.materialise()
except FeatureStoreError as error:
    print(error)
"""


def _on_a_full_disk(store: DemandFeatureStore, what: str, limit_bytes: int) -> str:
    command = [sys.executable, "-P", "-c", FULL_DISK, str(store.folder.parent.parent), what, str(limit_bytes)]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=200).stdout


def test_a_full_disk_keeps_the_old_rows(store: DemandFeatureStore, daily: Daily) -> None:
    series = daily()
    store.write([series])
    said = _on_a_full_disk(store, "write", 20_000)
    assert "cannot write" in said
    assert "untouched" in said
    np.testing.assert_array_equal(store.training_table([series]).features[:, LAST], series.value[:-1])
    assert not list((store.folder / "staging").iterdir())


@pytest.mark.long
def test_a_full_disk_keeps_the_old_online_rows(store: DemandFeatureStore, daily: Daily) -> None:
    old, new = daily(), daily(seed=1)
    store.write([old])
    store.materialise()
    store.write([new, *(daily(f"service {number}", buckets=20) for number in range(60))])
    said = _on_a_full_disk(store, "materialise", (store.folder / "online.db").stat().st_size + 20_000)
    assert "feature store" in said
    assert store.online(["chat"]).features[0, LAST] in (old.value[-1], new.value[-1])
    store.materialise()
    assert store.online(["chat"]).features[0, LAST] == new.value[-1]


def test_a_failing_rename_keeps_the_old_rows(
    store: DemandFeatureStore, daily: Daily, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = daily()
    store.write([old])

    def refuse(path: Path, target: Path) -> Path:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as broken:
        broken.setattr(Path, "replace", refuse)
        with pytest.raises(FeatureStoreError, match="No space left on device"):
            store.write([daily(seed=1)])
    np.testing.assert_array_equal(store.training_table([old]).features[:, LAST], old.value[:-1])
    assert not list((store.folder / "staging").iterdir())


def test_what_a_crash_left_half_written_is_not_read(store: DemandFeatureStore, daily: Daily) -> None:
    series = daily()
    store.write([series])
    whole = file_of(store.folder / "offline", "chat").read_bytes()
    (store.folder / "staging" / "left.parquet").write_bytes(whole[:1000])
    assert store.training_table([series]).joined.all()
    assert store.materialise() == 1


@pytest.mark.parametrize("damage", ["cut", "emptied", "overwritten"])
def test_a_torn_file_is_named_and_mended_by_writing(store: DemandFeatureStore, daily: Daily, damage: str) -> None:
    series = [daily(), daily("other")]
    store.write(series)
    file = file_of(store.folder / "offline", "chat")
    whole = file.read_bytes()
    torn = {"cut": whole[: len(whole) // 2], "emptied": b"", "overwritten": whole[:-50] + b"\0" * 50}
    file.write_bytes(torn[damage])
    for use in (lambda: store.training_table(series), lambda: store.materialise()):
        with pytest.raises(FeatureStoreError, match=f"{file.name} is torn; write its series again"):
            use()
    assert store.materialise(names=["other"]) == 1
    store.write(series[:1])
    assert store.training_table(series).joined.all()


def test_a_damaged_online_store_says_what_to_do(store: DemandFeatureStore) -> None:
    store.apply()
    for file in store.folder.glob("online.db*"):
        file.write_bytes(b"not a database" * 1000)
    with pytest.raises(FeatureStoreError, match="remove it and write the series again"):
        store.online(["chat"])


def test_readers_beside_a_writer_see_whole_series(store: DemandFeatureStore, daily: Daily) -> None:
    low, high = (replace(daily(), value=np.full(600, level)) for level in (1.0, 2.0))
    store.write([low])
    store.materialise()
    done = threading.Event()

    def rewrite() -> None:
        for turn in range(8):
            store.write([(low, high)[turn % 2]])
            store.materialise()
        done.set()

    writer = threading.Thread(target=rewrite)
    writer.start()
    seen, online = set(), set()
    while not done.is_set():
        seen.add(tuple(np.unique(store.training_table([low]).features[:, LAST])))
        # Two columns that are equal in a whole row of a flat series.
        row = store.online(["chat"]).features[0]
        online.add((row[LAST], row[COLUMN["max_7d"]]))
    writer.join()
    assert seen <= {(1.0,), (2.0,)}
    assert online <= {(1.0, 1.0), (2.0, 2.0)}
    assert len(online) == 2
