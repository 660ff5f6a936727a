"""Jobs of one type are told from others by what decides their memory, and profiles are read with suspicion."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kopt.core.units import GIB, Bytes
from kopt.core.workload.profile import DryRun, JobType, normalised_command, read_dry_run
from kopt.core.workload.sizing import WorkloadProfile

BASE = ("python", "train.py", "--batch-size", "32", "--output_dir", "/out/a", "--seed=1", "--lr", "1e-4")


@pytest.mark.parametrize(
    "other",
    [
        ("python", "train.py", "--batch-size", "32", "--output_dir", "/out/b", "--seed=7", "--lr", "1e-4"),
        ("python", "train.py", "--batch-size", "32", "--output_dir", "/x", "--seed=2026", "--lr", "1e-4"),
    ],
)
def test_runs_that_differ_in_names_and_places_are_of_one_type(other: tuple[str, ...]) -> None:
    assert JobType("i", BASE).digest == JobType("i", other).digest


@pytest.mark.parametrize(
    "other",
    [
        JobType("i", tuple("64" if part == "32" else part for part in BASE)),
        JobType("j", BASE),
        JobType("i", BASE, "H100-SXM5-80GB"),
        JobType("i", BASE, world_size=8),
        JobType("i", BASE[:2]),
    ],
)
def test_what_decides_the_memory_tells_types_apart(other: JobType) -> None:
    assert JobType("i", BASE).digest != other.digest


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("--max-tokens=4096", "--max-tokens=8192"),
        ("--max-num-batched-tokens=1", "--max-num-batched-tokens=2"),
        ("--embeddings=10485760", "--embeddings=20971520"),
        ("20100101", "20100102"),
        ("model.depth=12", "model.depth=24"),
    ],
)
def test_sizes_are_never_taken_for_secrets_or_dates(one: str, other: str) -> None:
    assert JobType("i", (*BASE, one)).digest != JobType("i", (*BASE, other)).digest


def test_overrides_of_a_configuration_are_options_too() -> None:
    command = ("train", "trainer.output_dir=/out/a", "run_name=x", "save", "optim.lr=0.1")
    assert normalised_command(command) == ("train", "trainer.output_dir=*", "run_name=*", "save", "optim.lr=0.1")


def test_secrets_and_time_stamps_do_not_stay_in_a_type() -> None:
    command = ("run", "--hf-token", "hf_abc", "--api_key=sk-1", "--data", "/d/run-2026-03-01T10:00:00")
    assert normalised_command(command) == ("run", "--hf-token", "*", "--api_key=*", "--data", "/d/run-*")


def document(**changes: Any) -> dict[str, Any]:
    found = DryRun(WorkloadProfile("H100-SXM5-80GB", Bytes(GIB), 60.0, 60, True, 0.5), "t").to_dict()
    return found | changes


@pytest.mark.parametrize(
    "wrong",
    [
        {"schema": "other"},
        {"peak_bytes": -1},
        {"peak_bytes": True},
        {"peak_bytes": "1"},
        {"peak_bytes": 1 << 60},
        {"duration_s": float("nan")},
        {"activity": 1.5},
        {"steady": "yes"},
        {"gpu": "x" * 10_000},
        {"samples": -1},
        {"activity_quantiles": {"p50": 0.9, "p95": 0.1, "max": 1}},
        {"activity_quantiles": []},
        {"warnings": ["x"] * 21},
        {"gpus": -1},
        {"exit_status": 1.5},
    ],
)
def test_a_document_that_cannot_be_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        read_dry_run(document(**wrong))


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
        max_leaves=10,
    )
)
def test_any_document_is_a_profile_or_refused(found: Any) -> None:
    for one in (found, document(activity_quantiles=found, warnings=found), document(steps=found, source=found)):
        try:
            read_dry_run(one)
        except ValueError:
            continue


def test_the_flat_document_is_what_estimates_read() -> None:
    names = {"gpu", "peak_bytes", "duration_s", "samples", "steady", "activity", "bandwidth", "steps", "source"}
    assert names <= document().keys()
    assert WorkloadProfile(**{name: document()[name] for name in names}).peak_bytes == GIB
