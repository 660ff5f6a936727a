"""Drawn and damaged texts for every reader that faces users: an answer or the reader's own error, and soon."""

import json
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import topology_outputs as rendered
from example_budget import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kopt.cli.errors import Refused
from kopt.cli.script_arguments import read_manifest
from kopt.core.workload.training_plan import PlanError
from kopt.dashboard.data.capacity import CapacityError, read_capacities
from kopt.formats.entrypoint import (
    Entrypoint,
    EntrypointError,
    dockerfile_entrypoint,
    notebook_source,
    pod_entrypoint,
    read_script,
    what_runs,
)
from kopt.formats.gpu_metrics import MetricsError, amd_smi, nvidia_smi, rocm_smi
from kopt.formats.joblog import LineSplitter, read_message
from kopt.formats.topology import FormatError, parse
from kopt.formats.trainers import TRAINERS, read_plan
from kopt.formats.yaml_text import YamlError, load_all_yaml

CPU_S = 20.0
fuzzed = settings(
    max_examples=examples(40, thorough=20_000),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)

M = rendered.machine(3, 4, 2)
OUTPUTS = (
    rendered.topo_m(M),
    rendered.topo_m(M, legend=False),
    rendered.rocm_topo(M),
    rendered.rocm_topo_json(M),
    rendered.amd_topo(M),
    rendered.amd_topo_json(M),
    rendered.nccl_xml(M),
    rendered.gpustack(M),
    rendered.fabric(),
    rendered.nccl_tests(),
    rendered.nvlink_status(),
    rendered.pasted(M),
    rendered.bare(M),
    "\tGPU0\tGPU1\nGPU0\t X \tNV4\nGPU1\tNV4\t X \n",
)
MANIFEST = """
kind: Job
metadata: {name: a, annotations: {x: "1"}}
spec:
  template:
    spec:
      containers:
      - name: c
        image: i
        command: [torchrun, --nproc-per-node, "2", train.py]
        args: [--lr, "0.1"]
        env: [{name: A, value: b}]
        resources: {limits: {nvidia.com/gpu: 1}}
"""
SHELL = (
    "torchrun --nproc-per-node 2 train.py --lr 0.1",
    "bash -c 'cd /x && python -m a.b --c=d; wait'",
    "env A=b accelerate launch --num_processes 4 t.py",
    "for i in 1 2; do python a.py $i; done",
)
WORDS = (
    "X",
    "NV4",
    "\t",
    "0",
    "-1",
    "9" * 40,
    "1e999",
    "nan",
    "\x00",
    "é",
    "[",
    "{",
    "&a",
    "*a",
    "<<:",
    "'",
    '"',
    "$(",
    "${A:-",
    "\\",
    "<",
    "]]>",
    "::",
    "0x",
    "GPU7",
    "null",
    "|",
    "=",
)


@st.composite
def damaged(draw: st.DrawFn, texts: tuple[str, ...]) -> str:
    """One of the texts with some pieces taken out, doubled, moved or replaced."""
    text = draw(st.sampled_from(texts))
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, max(0, len(text) - 1)))
        end = draw(st.integers(start, min(len(text), start + 60)))
        piece = draw(
            st.sampled_from(("", text[start:end] * 2, text[:20])) | st.sampled_from(WORDS) | st.text(max_size=8)
        )
        text = text[:start] + piece + text[end:]
    return text


JSONS = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**30), 10**30)
    | st.floats()
    | st.text(max_size=12)
    | st.sampled_from(WORDS),
    lambda inner: (
        st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=12) | st.sampled_from(WORDS), inner, max_size=5)
    ),
    max_leaves=20,
)


def soon(read: Callable[[], Any], *errors: type[Exception]) -> None:
    """The reader answers, or raises one of its own errors, within the budget of processor time."""
    began = time.thread_time()
    with suppress(*errors):
        read()
    assert time.thread_time() - began < CPU_S


def no_file(_: str) -> None:
    return None


@fuzzed
@given(damaged(OUTPUTS))
def test_topologies(text: str) -> None:
    soon(lambda: parse(text, lambda one: load_all_yaml(one)[0] if load_all_yaml(one) else None), FormatError, YamlError)


@fuzzed
@given(damaged((MANIFEST,)) | st.text(max_size=200))
def test_yaml(text: str) -> None:
    soon(lambda: load_all_yaml(text), YamlError)


@fuzzed
@given(text=damaged((MANIFEST,)))
def test_manifests(tmp_path: Path, text: str) -> None:
    path = tmp_path / "job.yaml"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))

    def read() -> None:
        pod_entrypoint(read_manifest(path), no_file)

    soon(read, Refused, EntrypointError)


@fuzzed
@given(damaged(SHELL) | st.text(max_size=100))
def test_command_lines(text: str) -> None:
    soon(lambda: what_runs(text, no_file), EntrypointError)
    soon(lambda: what_runs(text.split(), no_file), EntrypointError)
    soon(lambda: dockerfile_entrypoint(f"FROM x\nENTRYPOINT {text}\nCMD {text}\n", no_file), EntrypointError)


@fuzzed
@given(damaged(("import torch\nlr = 0.1\nmodel = torch.nn.Linear(1, 2)\nfor i in range(3):\n    pass\n",)))
def test_scripts(text: str) -> None:
    soon(lambda: read_script(text), EntrypointError)


@fuzzed
@given(JSONS)
def test_notebooks_and_pods(document: Any) -> None:
    soon(lambda: notebook_source(json.dumps({"cells": document})), EntrypointError)
    if isinstance(document, dict):
        soon(lambda: pod_entrypoint(document, no_file), EntrypointError)


@fuzzed
@given(
    st.sampled_from([trainer.name for trainer in TRAINERS]),
    st.dictionaries(
        st.text(max_size=12)
        | st.sampled_from(
            (
                "model_name_or_path",
                "per_device_train_batch_size",
                "num_layers",
                "hidden_size",
                "seq_length",
                "max_length",
                "zero_stage",
                "num-layers",
                "bf16",
                "lora_r",
                "deepspeed",
                "tensor-parallel-size",
            )
        ),
        JSONS,
        max_size=6,
    ),
)
def test_plans(trainer: str, given_: dict[str, Any]) -> None:
    words = tuple(f"--{key}={value}" for key, value in given_.items())
    entrypoint = Entrypoint("script", "train.py", words)  # type: ignore[arg-type]
    soon(lambda: read_plan(entrypoint, lambda _: given_, trainer=trainer, settings=given_), PlanError)


@fuzzed
@given(st.binary(max_size=300), st.text(max_size=200))
def test_logs(content: bytes, text: str) -> None:
    soon(lambda: [read_message(line.text) for line in LineSplitter().feed(content)])
    soon(lambda: read_message(text))
    soon(lambda: read_message(json.dumps({"msg": text, "time": text})))


@fuzzed
@given(text=damaged(("[chat]\ngpus = 8\nper_gpu = 12.5\nminimum = 1\npool = 'a'\n",)) | st.text(max_size=100))
def test_capacities(tmp_path: Path, text: str) -> None:
    path = tmp_path / "services.toml"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    soon(lambda: read_capacities(path), CapacityError)


@pytest.mark.parametrize("module", [nvidia_smi, rocm_smi, amd_smi], ids=lambda one: one.__name__.rpartition(".")[2])
@fuzzed
@given(text=st.text(max_size=200) | JSONS.map(lambda one: json.dumps(one)))
def test_gpu_metrics(module: Any, text: str) -> None:
    for name in [one for one in dir(module) if one.startswith("parse")]:
        soon(lambda name=name: getattr(module, name)(text), MetricsError)  # type: ignore[misc]
