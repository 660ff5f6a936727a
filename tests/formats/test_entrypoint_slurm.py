"""Batch scripts of Slurm: their lines, options of sbatch, and what launchers inside take from them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kopt.formats.entrypoint import slurm, what_runs
from kopt.formats.entrypoint.entrypoint import Entrypoint

TRAIN = "train.py --batch-size 8"
TWO_NODES = "#!/bin/bash\n#SBATCH --job-name=x\n#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=8  # one for each GPU\n"


def read(command: str, script: str) -> Entrypoint:
    return what_runs(command, lambda path: script if path == "job.sh" else None)


def processes(command: str, script: str) -> tuple[str | None, int | None, int]:
    result = read(command, script)
    return result.launcher, result.world_size, result.nodes


@pytest.mark.parametrize("command", ["job.sh", "bash job.sh", "sbatch job.sh", "sbatch --parsable job.sh a b"])
def test_srun_starts_the_tasks_of_the_script(command: str) -> None:
    assert processes(command, f"{TWO_NODES}srun python {TRAIN}") == ("srun", 16, 2)


@pytest.mark.parametrize(
    ("lines", "inside", "expected"),
    [
        ("--nodes=2 --ntasks=16", "srun python", ("srun", 16, 2)),
        ("-N 2 -n 16", "srun python", ("srun", 16, 2)),
        ("-N2 --gres=gpu:a100:4", "srun python", ("srun", 2, 2)),
        ("--nodes=2-4 --ntasks-per-node 4", "srun --ntasks-per-node=8 python", ("srun", 16, 2)),
        ("-N 2 --gres=gpu:8", "srun torchrun --nproc_per_node $SLURM_GPUS_ON_NODE --nnodes 2", ("torchrun", 16, 2)),
        ("--gpus-per-node=h100:8", "torchrun --nproc_per_node=gpu", ("torchrun", 8, 1)),
        ("--gres=gpu:4", "accelerate launch", ("accelerate", 4, 1)),
        ("--gres=gpu:a100:8(S:0-1)", "deepspeed", ("deepspeed", 8, 1)),
        ("-N 2 --ntasks-per-node=1 --gpus-per-task=8", "srun torchrun --nproc_per_node=gpu", ("torchrun", 16, 2)),
        ("-N 4 --ntasks-per-node=8 --gpus-per-node=8", "mpirun python", ("mpirun", 32, 1)),
        ("--gpus=4", "deepspeed", ("deepspeed", 4, 1)),
        ("-N 2 --gpus=16 --ntasks-per-node=1", "srun torchrun --nproc_per_node 8 --nnodes 2", ("torchrun", 16, 2)),
    ],
)  # fmt: skip
def test_launchers_take_what_they_are_not_told(lines: str, inside: str, expected: tuple[str, int, int]) -> None:
    assert processes("sbatch job.sh", f"#!/bin/bash\n#SBATCH {lines}\n{inside} {TRAIN}") == expected


def test_options_of_sbatch_win_over_the_script() -> None:
    script = f"{TWO_NODES}srun python {TRAIN}"
    assert processes("sbatch -N 4 job.sh", script) == ("srun", 32, 4)
    whole = f"#!/bin/bash\n#SBATCH --gpus=16\nsrun torchrun --nproc_per_node=gpu --nnodes 2 {TRAIN}"
    assert processes("sbatch -N 2 --ntasks-per-node=1 job.sh", whole) == ("torchrun", 16, 2)
    assert processes(f"sbatch -N 2 --ntasks-per-node=4 --wrap 'srun python {TRAIN}'", "") == ("srun", 8, 2)


def test_lines_behind_the_first_command_are_comments() -> None:
    script = f"#!/bin/bash\n#SBATCH -N 2\nmodule load cuda\n#SBATCH --ntasks-per-node=8\nsrun -n 4 python {TRAIN}"
    assert processes("sbatch job.sh", script) == ("srun", 4, 2)


def test_a_program_that_runs_elsewhere_sees_none_of_it() -> None:
    script = f"{TWO_NODES}export OMP_NUM_THREADS=4\nsrun python {TRAIN}"
    assert read("sbatch job.sh", script).env == {"OMP_NUM_THREADS": "4"}


def test_without_lines_nothing_is_assumed() -> None:
    result = read("bash job.sh", f"srun python {TRAIN}")
    assert (result.launcher, result.world_size) == ("srun", None)
    assert any(reason.code == "WORLD_SIZE" for reason in result.unknown)


@given(st.text(max_size=300))
def test_any_line_is_read_or_left_out(text: str) -> None:
    for name, value in slurm.variables_of_script(f"#!/bin/bash\n#SBATCH {text}\n#SBATCH -N {text}").items():
        assert name.startswith("SLURM_")
        assert value.isdecimal()


@pytest.mark.parametrize("value", ["0", "-1", "9" * 20, "gpu", "", "²"])
def test_amounts_that_cannot_be_are_left_out(value: str) -> None:
    assert slurm.GPUS not in slurm.variables_of_script(f"#SBATCH --gpus-per-node={value}")
