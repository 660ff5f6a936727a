"""``kopt train sizing`` on commands that somebody measured: read as ``kopt estimate`` reads them, then as ever."""

import csv
from pathlib import Path

import pytest
from empty_registry import with_empty_registry
from typer.testing import CliRunner

from kopt.cli.main import app
from kopt.core.settings import Settings
from kopt.core.units import GIB, MIB
from kopt.data.memory.commands import COLUMNS, read_measured_commands
from kopt.models.registry.registry import Registry
from kopt.training.pipeline.run import TrainOptions, train
from kopt.training.pipeline.tasks import HereTasks
from kopt.training.sizing.recipe import MeasuredCommands

MODELS = {
    "meta-llama/Llama-3.2-1B": "llama",
    "microsoft/phi-2": "phi",
    "EleutherAI/pythia-1b": "pythia",
}
SCRIPT = "import torch\nweights = torch.zeros(1 << 28, device='cuda')\n"


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Commands of three families, one of a script, one that nobody can read; measured: a quarter above 5 GiB."""
    path = tmp_path / "runs.csv"
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "hold.py").write_text(SCRIPT)
    with path.open("w", newline="") as file:
        rows = csv.DictWriter(file, COLUMNS, restval="")
        rows.writeheader()
        for model, family in MODELS.items():
            for batch in (1, 2, 4):
                words = f"litgpt finetune_lora {model} --precision bf16-true --train.micro_batch_size {batch}"
                words += " --train.max_seq_length 512 --optimizer AdamW"
                rows.writerow({"command": words, "gpu": "a100-80gb", "measured_mib": 6500 + batch, "family": family})
        rows.writerow({"command": "python hold.py", "gpu": "a100-80gb", "measured_mib": 1500, "folder": "code"})
        rows.writerow({"command": "./server --model x", "gpu": "a100-80gb", "measured_mib": 1500})
    return path


@pytest.mark.usefixtures("compiled_before")
def test_measured_commands_are_learned_from(table: Path, tmp_path: Path) -> None:
    settings = Settings(home=with_empty_registry(tmp_path / "home"))
    source = MeasuredCommands((table,), settings)
    dataset = source.read()
    assert dataset.names == ("own/llama", "own/phi", "own/pythia", "own/hold")
    assert [reason for name, reason in dataset.excluded.items() if "./server" in name]
    held = next(run for run in dataset.runs if run.family == "hold")
    assert held.question.amount == GIB, "the script ran abstractly, from its own folder"
    registry = Registry(settings)
    options = TrainOptions(folds=2, parameters={"rounds": 10, "rows_in_leaf": 3})
    outcome = train("sizing", source=source, settings=settings, options=options, tasks=HereTasks(), registry=registry)
    assert outcome.model.gate in ("passed", "refused")
    logged = registry.client.get_run(outcome.model.run_id)
    assert "./server" in logged.data.tags["left_out"]
    assert registry.metrics(outcome.model)["champion/all/median_error"] >= 0, "beside the shipped model, on her runs"


def test_a_table_without_a_usable_command_says_why(tmp_path: Path) -> None:
    (tmp_path / "runs.csv").write_text("command,gpu,measured_mib\n./server,a100-80gb,5\npython x.py,gpu-9000,5\n")
    with pytest.raises(ValueError, match=r"no command of runs.csv can be learned from \(1: \./server: .*gpu-9000"):
        MeasuredCommands((tmp_path / "runs.csv",), Settings(home=tmp_path / "home")).read()


def test_a_profile_is_added_to_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded = tmp_path / "log.csv"
    head = "timestamp, uuid, name, memory.used [MiB], memory.total [MiB], utilization.gpu [%]"
    rows = [f"2026/03/01 10:00:0{n}.000, GPU-1, NVIDIA L4, 8100 MiB, 23034 MiB, 80 %" for n in range(1, 10)]
    recorded.write_text("\n".join([head, *rows, ""]))
    monkeypatch.setenv("KOPT_PROFILE_SOURCE", f"csv:{recorded}")
    monkeypatch.chdir(tmp_path)
    command = ["profile", "--interval", "0.01", "--append", "runs.csv", "--", "sh", "-c", "sleep 2", "train.py"]
    for _ in range(2):
        done = CliRunner().invoke(app, command)
        assert done.exit_code == 0, done.output
    runs = list(read_measured_commands(tmp_path / "runs.csv"))
    assert {(run.command, run.measured // MIB, run.family) for run in runs} == {
        ("sh -c 'sleep 2' train.py", 8100, "train")
    }
    assert len(runs) == 2
    full = [line.replace("23034", "8200") for line in recorded.read_text().splitlines()]
    recorded.write_text("\n".join([*full, ""]))
    before = (tmp_path / "runs.csv").read_bytes()
    refused = CliRunner().invoke(app, command)
    assert (refused.exit_code, "the GPU's limit" in refused.output) == (1, True), refused.output
    assert (tmp_path / "runs.csv").read_bytes() == before
    wrong = CliRunner().invoke(app, ["profile", "--append", "runs.csv", "--from-csv", str(recorded)])
    assert wrong.exit_code == 2
