"""``kopt train sizing --from-cluster``: from dry runs of the controller to a table, and to a trained model."""

import csv
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from controlplane.kubelet import Kubelet
from controlplane.plane import ControlPlane
from controlplane.processes import Server
from empty_registry import with_empty_registry
from typer.testing import CliRunner

from kopt.cli.errors import Refused
from kopt.cli.main import app
from kopt.cli.training.command import TrainInputs
from kopt.cli.training.sizing import COMMAND
from kopt.core.settings import Settings
from kopt.core.units import MIB
from kopt.data.memory.commands import read_measured_commands
from kopt.models.registry.registry import Registry
from kopt.training.pipeline.run import TrainOptions, train
from kopt.training.pipeline.tasks import HereTasks

from .conftest import job, recording

pytestmark = [pytest.mark.cluster, pytest.mark.slow]
PROFILE = ("kaiwo.ai/v1alpha1", "SizingProfile")
MODEL = "meta-llama/Llama-3.2-1B"
OPTIONS = ("--precision", "bf16-true", "--train.max_seq_length", "512", "--optimizer", "AdamW")
SHOWN: dict[str, Any] = {"schema": "kopt/v1", "gpu": "H100-SXM5-80GB", "duration_s": 60, "samples": 9, "steady": True}


@pytest.fixture
def inputs(plane: ControlPlane, space: str, tmp_path: Path) -> Iterator[TrainInputs]:
    settings = Settings(home=with_empty_registry(tmp_path / "home"))
    yield TrainInputs(settings, None, None, None, "", "service", "7d", "5m", True, plane.kubeconfig)
    plane.api.delete_all(*PROFILE, space)


@pytest.fixture
def written(plane: ControlPlane, space: str) -> Callable[..., None]:
    """``written(name, peak_bytes=…, command=…)`` puts a profile into the cluster; ``None`` leaves a field out."""
    names: list[str] = []

    def write(name: str, command: Any = ("litgpt", "finetune_lora", MODEL), **shown: Any) -> None:
        profile = {key: value for key, value in {**SHOWN, "peak_bytes": 7 << 30, **shown}.items() if value is not None}
        spec = {"jobType": f"{len(names) + 1:032x}", "measuredAt": "2026-11-01T00:00:00Z", "profile": profile}
        spec |= {} if command is None else {"command": list(command)}
        metadata = {"name": name, "namespace": space}
        plane.api.create({"apiVersion": PROFILE[0], "kind": PROFILE[1], "metadata": metadata, "spec": spec})
        names.append(name)

    return write


def is_sized(document: dict[str, Any]) -> bool:
    return "kaiwo.ai/recommended-memory" in document["metadata"].get("annotations", {})


@pytest.mark.long
def test_dry_runs_of_a_cluster_become_a_table_and_a_model(
    plane: ControlPlane,
    gpu_node: Kubelet,
    space: str,
    start_controller: Callable[..., Server],
    inputs: TrainInputs,
    tmp_path: Path,
) -> None:
    start_controller()
    tool = tmp_path / "litgpt"
    tool.write_text("#!/bin/sh\nsleep 5\n")
    tool.chmod(0o755)
    secret = "--api-token=hf_" + "a1B2" * 9
    for batch, peak_mib in ((1, 6100), (4, 7300)):
        log = recording(tmp_path / f"{batch}.csv", peak_mib)
        made = job(f"b{batch}", space, "", log=log, selector=gpu_node.selector)
        words = [str(tool), "finetune_lora", MODEL, *OPTIONS, "--train.micro_batch_size", str(batch), secret]
        made["spec"]["template"]["spec"]["containers"][0]["command"] = words
        plane.api.create(made)
    for batch in (1, 4):
        plane.api.wait("batch/v1", "Job", f"b{batch}", is_sized, space)
        plane.api.delete("batch/v1", "Job", f"b{batch}", space, propagationPolicy="Background")
    source = COMMAND.source(inputs)
    table = inputs.settings.home / "measured" / "sizing" / "runs.csv"
    runs = list(read_measured_commands(table))
    assert sorted(run.measured // MIB for run in runs) == [6100, 7300], "their Jobs are gone"
    assert {(run.gpu, run.processes, run.family) for run in runs} == {("H100-SXM5-80GB", 1, "litgpt")}
    assert "hf_a1B2" not in table.read_text()
    dataset = source.read()
    assert len(dataset.names) == 1
    assert {run.measured // MIB for run in dataset.runs} == {6100, 7300}
    registry = Registry(inputs.settings)
    options = TrainOptions(folds=2, parameters={"rounds": 10, "rows_in_leaf": 3})
    outcome = train(
        "sizing", source=source, settings=inputs.settings, options=options, tasks=HereTasks(), registry=registry
    )
    assert outcome.model.gate in ("passed", "refused")


def test_what_cannot_be_learned_from_is_said_and_loses_nothing_else(
    plane: ControlPlane,
    space: str,
    written: Callable[..., None],
    inputs: TrainInputs,
    capfd: pytest.CaptureFixture[str],
) -> None:
    reasons = {
        "unkept": "did not keep the command",
        "limit": "ran at the GPU's limit",
        "unsteady": "ended before it was steady",
        "none": "no GPU memory",
        "lies": "it cannot be read (activity is a number",
        "elsewhere": "gpu-9000",
        "nul": "NUL character",
        "huge": "too long",
    }
    written("unkept", None)
    written("limit", capped=True)
    written("unsteady", steady=False)
    written("none", peak_bytes=0)
    written("lies", activity="all of it")
    written("elsewhere", gpu="gpu-9000\x1b[31m")
    written("nul", ("litgpt", "a\0b"))
    written("huge", ("litgpt", "finetune_lora", MODEL, *["x" * 8000] * 100))
    written("code", ("python", "-c", "open('/etc/passwd')"))
    for n in range(600):
        written(f"many-{n}", ("litgpt", "finetune_lora", MODEL, "--train.micro_batch_size", str(n)))
    COMMAND.source(inputs)
    said = capfd.readouterr().err
    for name, reason in reasons.items():
        (line,) = [line for line in said.splitlines() if reason in line]
        assert f"{space}/{name}" in line
    assert "\x1b" not in said
    folder = inputs.settings.home / "measured" / "sizing"
    assert len(list(read_measured_commands(folder / "runs.csv"))) == 600
    # Beside what other tests left on the control plane.
    aside = [run.command for run in read_measured_commands(folder / "scripts.csv") if "passwd" in run.command]
    assert len(aside) == 1, "code of somebody else is kept, and not run"

    # What is gone from the cluster stays, with what somebody has written into the table.
    with (folder / "runs.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        row["family"] = "llama"
    with (folder / "runs.csv").open("w", newline="") as file:
        table = csv.DictWriter(file, list(rows[0]))
        table.writeheader()
        table.writerows(rows)
    plane.api.delete_all(*PROFILE, space)
    written("many-0", ("litgpt", "finetune_lora", MODEL, "--train.micro_batch_size", "0"), peak_bytes=8 << 30)
    COMMAND.source(inputs)
    runs = list(read_measured_commands(folder / "runs.csv"))
    assert (len(runs), {run.family for run in runs}) == (600, {"llama"})
    assert [run.measured // MIB for run in runs if run.command.endswith(" 0")] == [8192]


def test_a_cluster_without_measurements_trains_nothing(
    plane: ControlPlane, inputs: TrainInputs, tmp_path: Path
) -> None:
    with pytest.raises(Refused, match="no measured command that can be learned from"):
        COMMAND.source(replace(inputs, settings=Settings(home=tmp_path / "other")))
    wrong = CliRunner().invoke(app, ["train", "demand", "--from-cluster", "--kubeconfig", str(plane.kubeconfig)])
    assert wrong.exit_code == 2
    assert "--from-cluster" in wrong.output
