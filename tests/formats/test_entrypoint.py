"""What would run: command lines, launch scripts, pods, Dockerfiles, notebooks; and what hostile ones do (nothing)."""

import contextlib
import json
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kopt.core.workload.sizing import RequestedGpus
from kopt.formats.entrypoint import (
    Entrypoint,
    EntrypointError,
    Kind,
    dockerfile_entrypoint,
    notebook_source,
    pod_entrypoint,
    read_script,
    what_runs,
)
from kopt.formats.processes import count_processes
from kopt.models.sizing.estimate import EstimateOptions, read_code


def nothing(path: str) -> None:
    return None


MEGATRON = """#!/bin/bash
# Trains a model
export CUDA_DEVICE_MAX_CONNECTIONS=1
GPUS_PER_NODE=8
NUM_NODES=${NNODES:-2}
WORLD_SIZE=$(($GPUS_PER_NODE*$NUM_NODES))
GPT_MODEL_ARGS=(
    --num-layers 96   # as in the paper
    --hidden-size 12288
    --seq-length 2048 )
GPT_MODEL_ARGS+=(--bf16)
DISTRIBUTED_ARGS="--nproc_per_node $GPUS_PER_NODE --nnodes $NUM_NODES"
pip install -r requirements.txt && echo "starting; python other.py"
cat > hosts <<EOF
python wrong.py
EOF
torchrun $DISTRIBUTED_ARGS pretrain_gpt.py \\
    ${GPT_MODEL_ARGS[@]} "$@" 2>&1 | tee log.txt
"""


@pytest.mark.parametrize(
    ("command", "script", "arguments", "launcher", "world", "nodes"),
    [
        ("train.py", "train.py", (), None, None, 1),
        ("python3.11 -u -W ignore train.py --lr '0.1 2'", "train.py", ("--lr", "0.1 2"), None, None, 1),
        ("A=1 nohup torchrun --standalone --nproc-per-node=4 train.py a &", "train.py", ("a",), "torchrun", 4, 1),
        ("torchrun --nnodes 1:4 --nproc_per_node 8 --rdzv-id=1 t.py", "t.py", (), "torchrun", 32, 4),
        ("python -m torch.distributed.launch --nproc_per_node 2 --use_env m.py", "m.py", (), "torchrun", 2, 1),
        (
            "accelerate launch --multi_gpu --num_processes 8 --num_machines 2 r.py -x",
            "r.py",
            ("-x",),
            "accelerate",
            8,
            2,
        ),
        ("deepspeed --include localhost:0,1,2 train.py", "train.py", (), "deepspeed", 3, 1),
        ("deepspeed --num_nodes 2 --num_gpus 4 --module pkg.train x", "pkg.train", ("x",), "deepspeed", 8, 2),
        ("mpirun -np 4 -x A=1 --allow-run-as-root -mca btl tcp python t.py", "t.py", (), "mpirun", 4, 1),
        ("srun -N2 --ntasks-per-node=8 python t.py", "t.py", (), "srun", 16, 2),
        ("srun --nodes=2 -n 16 python t.py", "t.py", (), "srun", 16, 2),
        ("srun --nodes=2 torchrun --nproc_per_node 8 t.py", "t.py", (), "torchrun", 16, 2),
        ("docker run --gpus all -e A=1 image:tag python t.py", "t.py", (), None, None, 1),
        ("timeout -s KILL 30 env -u X B=2 python t.py", "t.py", (), None, None, 1),
        ("bash -lc 'cd /x && python t.py \"a b\"'", "t.py", ("a b",), None, None, 1),
        ("ray job submit --working-dir . -- python t.py", "t.py", (), None, None, 1),
        ("python prepare.py && python train.py", "train.py", (), None, None, 1),
        ("torchrun --nproc_per_node 2 train.py; python evaluate.py", "train.py", (), "torchrun", 2, 1),
    ],
)
def test_launchers_are_peeled_off(
    command: str, script: str, arguments: tuple[str, ...], launcher: str | None, world: int | None, nodes: int
) -> None:
    found = what_runs(command, nothing)
    assert (found.script, found.arguments, found.launcher) == (script, arguments, launcher)
    assert (found.world_size, found.nodes) == (world, nodes)


@pytest.mark.parametrize(
    ("command", "trainer", "config"),
    [
        ("vllm serve meta-llama/Llama-3.1-8B --tensor-parallel-size 2", "vllm", None),
        ("python -m vllm.entrypoints.openai.api_server --model x", "vllm", None),
        ("python3 -m sglang.launch_server --model-path x", "sglang", None),
        ("text-generation-launcher --model-id x", "tgi", None),
        (
            "tune run --nproc_per_node 4 full_finetune_distributed --config llama3/8B_full batch_size=2",
            "torchtune",
            "llama3/8B_full",
        ),
        ("litgpt finetune_lora EleutherAI/pythia-1b --config c.yaml", "litgpt", "c.yaml"),
        ("accelerate launch -m axolotl.cli.train examples/llama.yml", "axolotl", "examples/llama.yml"),
        ("FORCE_TORCHRUN=1 llamafactory-cli train examples/x.yaml", "llamafactory", "examples/x.yaml"),
        ("swift sft --model Qwen/Qwen2.5-7B", "ms-swift", None),
        ("torchrun --nproc_per_node 8 -m torchtitan.train --job.config_file x.toml", "torchtitan", "x.toml"),
        ("torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 2", "megatron", None),
        ("deepspeed --num_gpus 2 train.py --deepspeed ds.json", "deepspeed", "ds.json"),
        ("python run_clm.py --model_name_or_path gpt2 --per_device_train_batch_size 8 --output_dir o", "hf", None),
    ],
)
def test_trainers_are_known_by_their_commands(command: str, trainer: str, config: str | None) -> None:
    found = what_runs(command, nothing)
    assert (found.trainer, found.config) == (trainer, config)


def test_a_launch_script_is_read_with_its_variables_and_lists() -> None:
    found = what_runs("bash train.sh --lr 1e-4", {"train.sh": MEGATRON}.get)
    assert found.script == "pretrain_gpt.py"
    assert found.arguments == (
        "--num-layers",
        "96",
        "--hidden-size",
        "12288",
        "--seq-length",
        "2048",
        "--bf16",
        "--lr",
        "1e-4",
    )
    assert (found.world_size, found.nodes, found.trainer) == (16, 2, "megatron")
    assert found.env == {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}


@pytest.mark.parametrize(
    ("asked", "config"),
    [
        ('$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)', "examples/ray/a.yaml"),
        ('$(cd -- "$(dirname -- "$0")" &>/dev/null && pwd -P)', "examples/ray/a.yaml"),
        ('$(cd "$(dirname "$0")/.." && pwd)', "examples/ray/../a.yaml"),
        ("$(dirname ${BASH_SOURCE[0]})", "examples/ray/a.yaml"),
    ],
)
def test_a_script_s_own_folder_is_known(asked: str, config: str) -> None:
    text = f'HERE="{asked}"\nmegatron sft --config "$HERE/a.yaml"\n'
    found = what_runs("bash examples/ray/run.sh", {"examples/ray/run.sh": text}.get)
    assert found.config == config
    assert "COMMAND_OUTPUT" not in {reason.code for reason in found.unknown}


def test_the_folder_of_a_text_that_is_sourced_or_no_file_is_not() -> None:
    text = 'megatron sft --config "$(dirname "$0")/a.yaml"\n'
    for command in (text, "bash run.sh"):
        found = what_runs(command, {"run.sh": "source sub/env.sh\n", "sub/env.sh": text}.get)
        assert "COMMAND_OUTPUT" in {reason.code for reason in found.unknown}


def test_what_only_a_run_can_tell_is_said() -> None:
    found = what_runs("torchrun --nproc_per_node $GPUS train.py --data $(pwd)/x", nothing)
    assert found.world_size is None
    codes = {reason.code for reason in found.unknown}
    assert {"VARIABLE", "COMMAND_OUTPUT"} <= codes


@pytest.mark.parametrize(
    ("command", "processes"),
    [
        ("torchrun --nproc-per-node 2 train.py", 2),
        ("srun --nodes=2 torchrun --nproc_per_node 4 t.py", 8),
        ("N=2 && torchrun --nproc-per-node ${N:-8} train.py", 2),
        ("vllm serve x --tensor-parallel-size 2", 2),
        ("vllm serve unheard-of", 1),
        ("litgpt finetune_lora x --devices 4", 4),
        ("text-generation-launcher --model-id x --num-shard 2", 2),
        ("text-generation-launcher --model-id x --sharded false", 1),
        # What follows leaves it to the machine, to the pod's environment, or to another program.
        ("torchrun train.py", None),
        ("accelerate launch train.py", None),
        ("tune run lora_finetune_distributed --config x", None),
        ("deepspeed train.py", None),
        ("text-generation-launcher --model-id x", None),
        ("litgpt pretrain x", None),
        ("vllm serve x --tensor-parallel-size $TP", None),
        ("torchrun --nproc-per-node ${N:-8} train.py", None),
        ("torchrun --nproc-per-node 8 train.py && torchrun --nproc-per-node 1 evaluate.py", None),
        ("if [ $A ]; then torchrun --nproc-per-node 8 t.py; else torchrun --nproc-per-node 1 t.py; fi", None),
        ("bash prepare.sh; torchrun --nproc-per-node 1 train.py", None),
        ("python train.py", None),
    ],
)
def test_only_what_the_command_says_is_known_of_its_processes(command: str, processes: int | None) -> None:
    assert count_processes(what_runs(command, nothing), nothing).of_pod == processes


def test_a_process_for_each_gpu_of_a_pod_is_no_evidence() -> None:
    for words in (["torchrun", "--nproc-per-node=auto", "t.py"], ["torchrun", "t.py"], ["deepspeed", "t.py"]):
        found = count_processes(pod_entrypoint(pod(command=words, resources=GPUS), nothing), nothing, RequestedGpus(4))
        assert found.of_pod is None
        assert found.world_size == (1 if words == ["torchrun", "t.py"] else 4)
    behind_an_image = pod(args=["torchrun", "--nproc-per-node=2", "t.py"], resources=GPUS)
    assert count_processes(pod_entrypoint(behind_an_image, nothing), nothing).of_pod is None
    several = what_runs("python prepare.py && litgpt finetune_lora x", nothing)
    assert count_processes(several, nothing, RequestedGpus(4)).total == 1, "memory is that of what is sized"


def test_a_here_document_may_fill_a_variable() -> None:
    script = (
        "read -r -d '' training_commands <<EOF\n"
        'openrlhf.cli.train_sft \\\n   --data.max_len 2048 \\\n   --note "two words"\nEOF\n'
        "cat <<END\npython other.py\nEND\n"
        "deepspeed --num_gpus 4 --module $training_commands\n"
    )
    found = what_runs("bash train.sh", {"train.sh": script}.get)
    assert (found.script, found.trainer, found.world_size) == ("openrlhf.cli.train_sft", "openrlhf", 4)
    assert found.arguments[:2] == ("--data.max_len", "2048")


def test_a_line_that_is_evaluated_is_read() -> None:
    script = (
        'run_cmd="torchrun --nproc_per_node 4\n pretrain_gpt.py --num-layers 2"\necho ${run_cmd}\neval ${run_cmd}\n'
    )
    found = what_runs("bash train.sh", {"train.sh": script}.get)
    assert (found.script, found.world_size, found.arguments) == ("pretrain_gpt.py", 4, ("--num-layers", "2"))


def test_lines_that_evaluate_lines_are_read_a_bounded_number_of_times() -> None:
    with pytest.raises(EntrypointError, match="deep; give"):
        what_runs("x='eval $x; eval $x; eval $x'; eval $x", nothing)
    with pytest.raises(EntrypointError, match="start each other"):
        what_runs("eval 'python t.py'; " * 150, nothing)


def test_comments_between_the_lines_of_a_command_are_no_arguments() -> None:
    found = what_runs("python t.py --rank 16 \\\n `# adapters` \\\n --alpha 32", nothing)
    assert found.arguments == ("--rank", "16", "--alpha", "32")


def test_what_readers_fill_in_may_have_spaces() -> None:
    script = (
        "DATA=<Specify path and prefix>_text\nLOAD=<Path of a model>\n\nARGS='--nproc_per_node 8'\ntorchrun $ARGS t.py"
    )
    assert what_runs(script, nothing).world_size == 8


def test_what_measures_coverage_starts_what_follows() -> None:
    found = what_runs(
        "coverage run -a --data-file=c --source=/src megatron_gpt_pretraining.py model.hidden_size=8", nothing
    )
    assert (found.script, found.trainer) == ("megatron_gpt_pretraining.py", "nemo")


def test_a_document_s_prompt_is_no_program() -> None:
    assert what_runs("$ pip install x\n$ python train.py", nothing).script == "train.py"


def test_folders_that_are_entered_are_known(tmp_path: Path) -> None:
    assert what_runs("git clone u && cd repository && cd scripts && python t.py", nothing).folders == (
        "repository",
        "scripts",
    )
    assert what_runs("python t.py && cd after", nothing).folders == ()
    assert what_runs("(cd data && make) && (cd more) ; python t.py", nothing).folders == ()
    assert what_runs("cd a; (cd b && python t.py)", nothing).folders == ("a", "b")
    assert what_runs("cd a && bash x.sh", {"x.sh": "cd b\npython t.py"}.get).folders == ("a", "b")
    (tmp_path / "scripts").mkdir()
    config = "model_name_or_path: gpt2\nper_device_train_batch_size: 1\nmax_length: 128\n"
    (tmp_path / "scripts/c.yaml").write_text(config, encoding="utf-8")
    options = EstimateOptions(folder=tmp_path, python="/no-python")
    (tmp_path / "data").mkdir()
    for enters in ("cd repository && cd scripts", "cd scripts", "cd scripts && cd ../data && cd -"):
        assert not read_code(f"{enters} && trl sft --config c.yaml", settings=None, options=options).problem
    assert read_code("trl sft --config c.yaml", settings=None, options=options).problem


@pytest.mark.parametrize(
    ("command", "config"),
    [
        ("trl sft recipe.yaml", "recipe.yaml"),
        ("python train.py recipe.yaml --model_name_or_path m --output_dir o", "recipe.yaml"),
        ("python train.py --model_name_or_path m --output_dir o --data_mixture mixture.yaml", None),
        ("python train.py --model_name_or_path m --output_dir o --train_data a.json b.json", None),
    ],
)
def test_data_of_a_script_are_not_its_settings(command: str, config: str | None) -> None:
    found = what_runs(command, nothing)
    assert (found.trainer, found.config) == ("hf", config)


def test_a_path_with_spaces_is_a_path() -> None:
    assert what_runs("/my models/train it.py", lambda path: "x = 1").script == "/my models/train it.py"


def test_source_on_the_command_line_is_kept_as_source() -> None:
    found = what_runs(["python", "-c", "__import__('os').system('touch /tmp/kopt-escaped')"], nothing)
    assert found.kind is Kind.CODE
    assert not Path("/tmp/kopt-escaped").exists()


def pod(**container: Any) -> dict[str, Any]:
    return {"kind": "Pod", "spec": {"containers": [{"name": "side", "args": ["x"]}, {"name": "main", **container}]}}


GPUS = {"limits": {"nvidia.com/gpu": "4"}}


def test_a_pod_s_gpu_container_is_read_with_its_variables() -> None:
    found = pod_entrypoint(
        pod(
            command=["torchrun"],
            args=["--nproc-per-node=auto", "train.py", "--bs", "$(BATCH)"],
            resources=GPUS,
            env=[{"name": "BATCH", "value": "8"}, {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "s"}}}],
        ),
        nothing,
    )
    assert found.arguments == ("--bs", "8")
    assert (found.world_size, found.env["BATCH"]) == (4, "8")
    assert "TOKEN" in " ".join(reason.message for reason in found.unknown)


def test_a_job_of_workers_counts_all_of_them() -> None:
    template = {"template": pod(command=["bash", "-c", "torchrun --nproc_per_node gpu t.py"], resources=GPUS)}
    job = {
        "kind": "PyTorchJob",
        "spec": {"pytorchReplicaSpecs": {"Master": {"replicas": 1, **template}, "Worker": {"replicas": 3, **template}}},
    }
    found = pod_entrypoint(job, nothing)
    assert (found.world_size, found.nodes) == (16, 4)


@pytest.mark.parametrize(
    ("manifest", "message"),
    [
        ({}, "no pod template"),
        ({"kind": "Pod", "spec": {"containers": []}}, "no containers"),
        (pod(image="pytorch", resources=GPUS), "pytorch decides what runs"),
        (pod(command="python train.py", resources=GPUS), "list of words"),
        ({"spec": {"template": {"spec": {"template": 3}}}}, "no pod template"),
    ],
)
def test_a_pod_that_does_not_say_what_runs_is_refused(manifest: dict[str, Any], message: str) -> None:
    with pytest.raises(EntrypointError, match=message):
        pod_entrypoint(manifest, nothing)


def test_variables_that_grow_are_refused() -> None:
    env = [{"name": "A", "value": "x" * 1000}]
    env += [{"name": chr(66 + n), "value": f"$({chr(65 + n)})" * 10} for n in range(10)]
    with pytest.raises(EntrypointError, match="longer than any command line"):
        pod_entrypoint(pod(command=["python", "t.py", "$(K)"], env=env, resources=GPUS), nothing)
    text = "A=xxxxxxxxxx\n" + "".join("A=$A$A$A$A\n" for _ in range(30)) + "python t.py $A"
    with pytest.raises(EntrypointError, match="grow beyond"):
        what_runs(text, nothing)


def test_a_dockerfile_is_read_to_its_last_stage() -> None:
    text = (
        'FROM a\nENTRYPOINT ["python", "old.py"]\nFROM b\nENV LR=1 X="a b"\n'
        'ENTRYPOINT ["python",\\\n "t.py"]\nCMD ["--x"]\n'
    )
    found = dockerfile_entrypoint(text, nothing)
    assert (found.script, found.arguments, found.env["X"]) == ("t.py", ("--x",), "a b")
    assert dockerfile_entrypoint("CMD python s.py && echo done", nothing).script == "s.py"
    with pytest.raises(EntrypointError, match="neither"):
        dockerfile_entrypoint("FROM x", nothing)


def test_a_notebook_becomes_its_code() -> None:
    cells = [
        {"cell_type": "markdown", "source": "# title"},
        {"cell_type": "code", "source": ["import torch\n", "if True:\n", "    !pip install x\n"]},
        {"cell_type": "code", "source": "%%bash\nrm -rf /"},
        {"cell_type": "code", "source": "x = 1"},
    ]
    source = notebook_source(json.dumps({"cells": cells, "metadata": {}}))
    compile(source, "notebook", "exec")
    assert "import torch" in source
    assert "x = 1" in source
    assert all(line.lstrip().startswith(("pass", "import", "if", "x")) for line in source.splitlines())


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"cells": 1}', "[" * 100_000, '{"metadata": {"kernelspec": {"language": "R"}}}']
)
def test_what_is_no_notebook_is_refused(text: str) -> None:
    with pytest.raises(EntrypointError):
        notebook_source(text)


def test_a_script_tells_its_defaults_and_settings() -> None:
    facts = read_script(
        """
import torch, transformers
from peft import LoraConfig
MODEL = "meta-llama/Llama-3.1-8B"
parser.add_argument("-b", "--batch-size", type=int, default=4 * 8)
parser.add_argument("--amp", action="store_true")
model = AutoModelForCausalLM.from_pretrained(MODEL, torch_dtype=torch.bfloat16)
args = TrainingArguments(output_dir=f"{x}", per_device_train_batch_size=2, bf16=True, learning_rate=compute())
peft = LoraConfig(r=16, target_modules=["q_proj", "v_proj"])
optimizer = torch.optim.AdamW(model.parameters())
"""
    )
    assert facts.frameworks == ("torch", "transformers", "peft")
    assert facts.models == ("meta-llama/Llama-3.1-8B",)
    assert facts.defaults == {"batch_size": 32, "amp": False}
    assert facts.settings == {"per_device_train_batch_size": 2, "bf16": True}
    assert facts.lora == {"r": 16, "target_modules": "q_proj,v_proj"}
    assert facts.optimizers == ("AdamW",)


HOSTILE_SOURCES = {
    "nested brackets": "(" * 50_000 + ")" * 50_000,
    "nested lists": "x = " + "[" * 3_000 + "]" * 3_000,
    "a megabyte line": "x = '" + "a" * 1_000_000 + "'",
    "too large": "x = 1\n" * 1_000_000,
    "a NUL byte": "import os\0",
    "minus signs": "x = " + "-" * 100_000 + "1",
    "short lines of minus signs": "x = (" + "-\n" * 90_000 + "1)",
    "attributes": "x" + ".a" * 40_000,
    "negations": "x = " + "not " * 20_000 + "1",
    "deep blocks": "".join(" " * n + "if x:\n" for n in range(200)) + " " * 200 + "pass",
    "quotes": "'''",
    "no Python": "#!/bin/sh\nfor x in *; do echo $x; done",
}


@pytest.mark.parametrize("name", HOSTILE_SOURCES)
def test_hostile_sources_are_refused_at_once(name: str) -> None:
    began = time.monotonic()
    with pytest.raises(EntrypointError):
        read_script(HOSTILE_SOURCES[name])
    assert time.monotonic() - began < 5


@pytest.mark.parametrize("chain", ["+", "*", "and", "if 1 else", "==", "or"])
def test_long_chains_of_operators_end_in_facts_or_a_refusal(chain: str) -> None:
    began = time.monotonic()
    with contextlib.suppress(EntrypointError):
        read_script("x = 1" + f" {chain}\\\n 1" * 15_000)
    assert time.monotonic() - began < 10


def test_reading_executes_nothing(tmp_path: Path) -> None:
    target = tmp_path / "escaped"
    touch = f"__import__('pathlib').Path({str(target)!r}).touch()"
    read_script(f"{touch}\nx = eval({touch!r})\nparser.add_argument('--x', default={touch})")
    what_runs(f"python t.py $(touch {target}) `touch {target}`; X=$(touch {target}) python y.py", nothing)
    assert not target.exists()


@pytest.mark.parametrize(
    "command",
    [
        "",
        "ls -la",
        "python 'x",
        "$(",
        "${",
        "`",
        "a" * 300_000,
        "python t.py \0",
        "bash -c " * 30 + "x",
        "((((((((" * 1000,
        "X=(" * 1000,
        "&& || ;;",
        "python -m pip install torch",
        "<<EOF",
        "env " * 5000,
        "${A:-" * 5000 + "}" * 5000,
        "\\",
        "bash self.sh",
    ],
)
def test_commands_that_train_nothing_are_refused_at_once(command: str) -> None:
    began = time.monotonic()
    with pytest.raises(EntrypointError):
        what_runs(command, {"self.sh": "bash self.sh"}.get)
    assert time.monotonic() - began < 5


def test_scripts_that_start_scripts_are_read_a_bounded_number_of_times() -> None:
    files = {f"{n}.sh": f"bash {n + 1}.sh\n" * 20 for n in range(10)} | {"10.sh": "true"}
    began = time.monotonic()
    with pytest.raises(EntrypointError, match="start each other"):
        what_runs("bash 0.sh", files.get)
    assert time.monotonic() - began < 5


pieces = st.sampled_from(
    [
        "python",
        "t.py",
        "torchrun",
        "--nproc_per_node",
        "2",
        "bash",
        "-c",
        "&&",
        "|",
        ";",
        "$X",
        "${X:-1}",
        "$(x)",
        "'",
        '"',
        "\\",
        "(",
        ")",
        "X=1",
        "A=(1",
        "#",
        "\n",
        "<<E",
        ">",
        "env",
        "timeout",
        "srun",
        "accelerate launch",
        "-m",
        "{",
        "}",
        "`",
        "*",
    ]
)


@given(st.lists(pieces, max_size=30).map(" ".join) | st.text(max_size=200))
def test_any_text_is_an_entrypoint_or_a_refusal(text: str) -> None:
    with contextlib.suppress(EntrypointError):
        assert isinstance(what_runs(text, {"t.sh": text}.get), Entrypoint)


values = st.recursive(
    st.none() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "spec",
                    "template",
                    "containers",
                    "command",
                    "args",
                    "env",
                    "name",
                    "value",
                    "resources",
                    "limits",
                    "nvidia.com/gpu",
                    "pytorchReplicaSpecs",
                    "Worker",
                    "replicas",
                    "kind",
                ]
            ),
            inner,
            max_size=4,
        )
    ),
)


@given(st.dictionaries(st.sampled_from(["spec", "kind", "metadata"]), values, max_size=3))
def test_any_manifest_is_an_entrypoint_or_a_refusal(manifest: dict[str, Any]) -> None:
    with contextlib.suppress(EntrypointError):
        assert isinstance(pod_entrypoint(manifest, nothing), Entrypoint)


@given(st.text(alphabet="()[]{}'\"\n :=.,-+not if lambda*#\\\tx1", max_size=300))
def test_any_source_is_read_or_refused(source: str) -> None:
    with contextlib.suppress(EntrypointError):
        read_script(source)


def test_an_argument_of_a_number_nobody_counts_to_is_none() -> None:
    found = what_runs("bash train.sh", {"train.sh": "python train.py ${" + "9" * 5000 + "} ${²}\n"}.get)
    assert found.script == "train.py"
