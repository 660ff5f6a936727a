"""The table of measured commands: what is written is read, what cannot be used is named; the guide's tables work."""

import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kopt.core.units import MIB, Bytes
from kopt.core.workload.sizing import AllocationKind
from kopt.data.demand.load import load
from kopt.data.joblogs.labelled import LogDataError, read_logs
from kopt.data.memory.commands import (
    MeasuredCommand,
    append_measured_command,
    family_of,
    read_measured_commands,
    tables_in,
)
from kopt.data.memory.table import MemoryDataError
from kopt.models.bandwidth.rows import read_measured

GUIDE = Path(__file__).parents[2] / "docs" / "training.md"
HEAD = "command,gpu,measured_mib"


def table_of_the_guide(title: str) -> str:
    blocks = re.findall(r'```\w+ title="([^"]+)"\n(.*?)```', GUIDE.read_text(), re.DOTALL)
    return dict(blocks)[title]


@given(
    command=st.text(st.characters(exclude_categories=("C",)), min_size=1).map(str.strip).filter(bool),
    mib=st.integers(1, 1 << 20),
    metric=st.sampled_from(AllocationKind),
    processes=st.none() | st.integers(1, 1 << 16),
)
def test_what_is_appended_is_read_again(
    tmp_path_factory: pytest.TempPathFactory, command: str, mib: int, metric: AllocationKind, processes: int | None
) -> None:
    folder = tmp_path_factory.mktemp("runs")
    path = folder / "runs.csv"
    run = MeasuredCommand(
        f"'{command.replace(chr(39), '')}x'", "l4", Bytes(mib * MIB), folder / "src", "f", metric, processes
    )
    for _ in range(2):
        append_measured_command(path, run)
    assert list(read_measured_commands(path)) == [run, run]
    assert tables_in(folder) == tables_in(path) == [path]


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (["", ""], "no column 'command'"),
        (["command,gpu", "a,b"], "no column 'measured_mib'"),
        ([HEAD, ",a100,5"], "line 2: command is empty"),
        ([HEAD, "python 'x,a100,5"], "line 2: command is no line of a shell (no closing quotation)"),
        ([HEAD, "a.py,,5"], "line 2: gpu is empty"),
        ([HEAD, "a.py,a100,"], "line 2: measured_mib is empty"),
        ([HEAD, "a.py,a100,7 GiB"], "line 2: measured_mib is '7 GiB', not a number"),
        ([HEAD, "a.py,a100,-7"], "no amount of GPU memory"),
        ([HEAD, "a.py,a100,1e99"], "no amount of GPU memory"),
        ([HEAD, "a.py,a100"], "line 2: another number of fields"),
        ([HEAD + ",metric", "a.py,a100,5,peak"], "metric 'peak' is none of allocated, reserved, process"),
        ([HEAD + ",processes", "a.py,a100,5,0"], "processes is '0', not a whole number from 1"),
        ([HEAD + ",processes", "a.py,a100,5,1.5"], "processes is '1.5', not a whole number"),
    ],
)
def test_what_cannot_be_used_is_named_with_its_place(tmp_path: Path, rows: list[str], words: str) -> None:
    path = tmp_path / "runs.csv"
    path.write_text("\n".join(rows) + "\n")
    with pytest.raises(MemoryDataError, match=re.escape(words)) as raised:
        list(read_measured_commands(path))
    assert "runs.csv" in str(raised.value)
    # And nothing is added to a table that cannot be read.
    before = path.read_bytes()
    with pytest.raises(MemoryDataError):
        append_measured_command(path, MeasuredCommand("a.py", "l4", Bytes(MIB), tmp_path, "a"))
    assert path.read_bytes() == before


def test_columns_that_somebody_left_out_or_added_stay_as_they_are(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    path.write_text("note,gpu,measured_mib,command\nmine,l4,100,a.py\n")
    append_measured_command(path, MeasuredCommand("b.py --x 1", "l4", Bytes(200 * MIB), tmp_path, "b"))
    assert path.read_text().splitlines()[-1] == ",l4,200,b.py --x 1"
    assert [run.command for run in read_measured_commands(path)] == ["a.py", "b.py --x 1"]


def test_the_family_of_a_command_is_its_script() -> None:
    assert family_of("torchrun --nproc-per-node 4 src/train_vit.py --lr 1") == "train_vit"
    assert family_of("litgpt finetune_lora x") == "litgpt"


def test_every_table_of_the_guide_is_read(tmp_path: Path) -> None:
    (tmp_path / "runs.csv").write_text(table_of_the_guide("runs.csv"))
    assert [run.family for run in read_measured_commands(tmp_path / "runs.csv")] == ["llama", "phi", "train"]
    (tmp_path / "bandwidth.csv").write_text(table_of_the_guide("bandwidth.csv"))
    assert len(read_measured(tmp_path / "bandwidth.csv")) == 3
    (tmp_path / "demand.csv").write_text(table_of_the_guide("demand.csv"))
    assert {series.name for series in load(tmp_path / "demand.csv")} == {"chat", "search"}
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "train-1.log").write_text("\n".join(["start", "step 1", "Saving", "Saved", "step 2", ""]))
    (tmp_path / "labels.jsonl").write_text(table_of_the_guide("labels.jsonl"))
    (log,) = read_logs(tmp_path)
    assert (log.framework, log.spans, log.completions) == ("our trainer", ((3, 3),), (4,))


@pytest.mark.parametrize("absent", ["file", "framework", "lines", "write_intervals", "completed_at"])
def test_a_record_of_a_log_that_lacks_something_is_named(tmp_path: Path, absent: str) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "train-1.log").write_text("a\nb\nc\nd\ne\n")
    record = json.loads(table_of_the_guide("labels.jsonl"))
    (tmp_path / "labels.jsonl").write_text(json.dumps({key: value for key, value in record.items() if key != absent}))
    with pytest.raises(LogDataError, match=f"no '{absent}'"):
        read_logs(tmp_path)
    if absent != "framework":
        (tmp_path / "labels.jsonl").write_text(json.dumps(record | {absent: 7}))
        with pytest.raises(LogDataError, match=r"labels\.jsonl"):
            read_logs(tmp_path)
