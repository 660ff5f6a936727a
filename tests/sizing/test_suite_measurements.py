"""Measurements on file: what is written is read again, the last word counts, damage is named."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from benchmarked import benchmark_module

from kopt.core.units import GIB
from kopt.core.workload.sizing import AllocationKind
from kopt.data.memory import Category

stored = benchmark_module("measurements")
suite = benchmark_module("sizing_suite")
Ending = stored.Ending


def one(**changed: Any) -> Any:
    about = {
        "name": "imagenet-resnet50-b64",
        "digest": "d1",
        "category": "cnn",
        "family": "resnet",
        "framework": "torch",
        "precision": "fp32",
        "optimizer": "sgd",
        "batch": 64,
        "ending": Ending.FINISHED,
        "gpu": "NVIDIA H200",
        "driver": "580.1",
        "capacity": 141 * GIB,
        "torch": "2.11.0+cu130",
        "cuda": "13.0",
        "hip": None,
        "allocator_configuration": "",
        "at": "2026-11-21T19:00:00+00:00",
        "seconds": 12.5,
        "steps": 40,
        "allocated": 5 * GIB,
        "reserved": 6 * GIB,
        "process": 7 * GIB,
        "process_scope": "process",
        "activity": 0.7,
    }
    return stored.Measurement(**{**about, **changed})


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    path = stored.path_for(tmp_path / "new", "NVIDIA H200 (PCIe) / x", "2.11.0+cu130")
    assert path.name == "NVIDIA-H200-PCIe-x-2.11.0+cu130.jsonl"
    written = [one(), one(name="b", digest="d2", ending=Ending.OUT_OF_MEMORY, error="CUDA out of memory\nü")]
    for measurement in written:
        stored.append(path, measurement)
    assert stored.read_measurements(path.parent) == tuple(written)
    assert stored.read_measurements(tmp_path / "nothing") == ()


def test_the_last_measurement_of_a_thing_counts(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    capped = one(capacity=24 * GIB, ending=Ending.OUT_OF_MEMORY)
    for measurement in (one(allocated=1), capped, one(allocated=2)):
        stored.append(path, measurement)
    assert stored.read_measurements(tmp_path) == (capped, one(allocated=2))


def test_a_line_cut_off_at_the_end_is_left_out_and_one_within_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    good = one().to_json()
    path.write_text(f"{good}\n{good[:50]}")
    assert stored.read_measurements(tmp_path) == (one(),)
    path.write_text(f"{good}\n{good[:50]}\n{good}\n")
    with pytest.raises(stored.MeasurementError, match=r"a.jsonl, line 2: "):
        stored.read_measurements(tmp_path)


@pytest.mark.parametrize(
    "changed",
    [
        {"allocated": -1},
        {"process": 1 << 60},
        {"activity": 1.5},
        {"bandwidth": -0.1},
        {"ending": "well"},
        {"new": 1},
        {"name": None},
    ],
)
def test_what_cannot_be_is_refused(tmp_path: Path, changed: dict[str, Any]) -> None:
    document = {**dataclasses.asdict(one()), **changed}
    if document["name"] is None:
        del document["name"]
    (tmp_path / "a.jsonl").write_text(f"{json.dumps(document)}\n{one().to_json()}\n")
    with pytest.raises(stored.MeasurementError, match="line 1"):
        stored.read_measurements(tmp_path)


@pytest.mark.parametrize("line", ["[]", "3", "null", "{}", "[" * 100_000, "\0"])
def test_what_is_no_measurement_is_refused(tmp_path: Path, line: str) -> None:
    (tmp_path / "a.jsonl").write_text(f"{line}\n{one().to_json()}\n")
    with pytest.raises(stored.MeasurementError, match="line 1"):
        stored.read_measurements(tmp_path)


def test_measurements_as_rows_of_the_public_table() -> None:
    rows = stored.memory_runs(
        [
            one(),
            one(name="oom", ending=Ending.OUT_OF_MEMORY),
            one(name="bad", ending=Ending.FAILED, allocated=None),
            one(name="caught", out_of_memory_events=1, process=None, reserved=None),
        ]
    )
    assert [(row.name, row.metric, row.measured) for row in rows[:3]] == [
        ("imagenet-resnet50-b64", AllocationKind.ALLOCATED, 5 * GIB),
        ("imagenet-resnet50-b64", AllocationKind.RESERVED, 6 * GIB),
        ("imagenet-resnet50-b64", AllocationKind.PROCESS, 7 * GIB),
    ]
    assert {row.family for row in rows} == {"resne"}  # held out together with timm's ResNets
    assert (rows[3].name, rows[3].out_of_memory, rows[3].measured) == ("oom", True, None)
    assert [(row.name, row.censored) for row in rows[4:]] == [("caught", True)]


def test_every_entry_of_the_suite_has_a_place_in_the_table() -> None:
    for entry in suite.read_suite():
        rows = stored.memory_runs([one(name=entry.name, category=entry.category, family=entry.family)])
        assert {row.category for row in rows} <= set(Category)
        assert len(rows) == 3
