"""Slurm's batch scripts: what their ``#SBATCH`` lines, and options of ``sbatch``, set for the commands inside.

Source: sbatch(1) and srun(1) of Slurm 24.05: options of the command line win over lines of the script, which end with
its first command; the variables set here are outputs of ``sbatch`` and inputs of ``srun``.
"""

import re
from collections.abc import Iterator, Mapping, Sequence

from kopt.formats.entrypoint.options import SRUN, ParsedOptions, read_options

NODES, TASKS, TASKS_PER_NODE, GPUS = "SLURM_NNODES", "SLURM_NTASKS", "SLURM_NTASKS_PER_NODE", "SLURM_GPUS_ON_NODE"
_PREFIX = "SLURM_"
_FIRST = dict.fromkeys(("SLURM_PROCID", "SLURM_NODEID", "SLURM_LOCALID"), "0") | {
    "SLURM_JOB_ID": "1",
    "SLURM_JOBID": "1",
}
"""What the first process of a job sees; sizes do not depend on it."""
_MOST_LINES, _MOST_CHARACTERS = 200, 1000
_DIRECTIVE = "#SBATCH"
_WORD = re.compile(r"""(?:[^\s"'#]|"[^"]*"|'[^']*')+""")
_AMOUNT = re.compile(r"(?:[\w.-]+:)?(\d{1,6})")
_NODE_COUNT = re.compile(r"(\d{1,6})(?:-\d{1,6})?")


def variables_of_script(text: str, before: Sequence[str] = ()) -> dict[str, str]:
    """What the lines of a script set; empty where it has none. ``before`` are options of the command line and win."""
    lines = [[re.sub("[\"']", "", word) for word in _WORD.findall(line)] for line in _directives(text)]
    values = [pair for words in (*lines, before) for pair in read_options(words, SRUN).values]
    return variables(ParsedOptions(tuple(values), ()))


def _directives(text: str) -> Iterator[str]:
    for line in text[: _MOST_LINES * _MOST_CHARACTERS].splitlines()[:_MOST_LINES]:
        if line.startswith(_DIRECTIVE):
            yield line[len(_DIRECTIVE) : _MOST_CHARACTERS]
        elif line.strip() and not line.startswith("#"):
            return


def variables(options: ParsedOptions) -> dict[str, str]:
    """By options of ``sbatch``; numbers that are none are left out."""
    nodes = _number(_NODE_COUNT, options.get("N", "nodes"))
    number = _number(_AMOUNT, options.get("n", "ntasks"))
    each = _number(_AMOUNT, options.get("ntasks_per_node"))
    whole = _number(_AMOUNT, options.get("G", "gpus"))
    gpus = _number(_AMOUNT, options.get("gpus_per_node")) or _of_resources(options.get("gres"))
    per_task = _number(_AMOUNT, options.get("gpus_per_task"))
    if gpus is None and per_task is not None:
        gpus = per_task * (each or max(1, (number or 1) // (nodes or 1)))
    if gpus is None and whole is not None:
        gpus = max(1, whole // (nodes or 1))
    result = {NODES: nodes, TASKS: number, TASKS_PER_NODE: each, GPUS: gpus}
    known = {name: str(number) for name, number in result.items() if number}
    same = {"SLURM_JOB_NUM_NODES": NODES, "SLURM_NPROCS": TASKS, "SLURM_GPUS_PER_NODE": GPUS}
    known |= {name: known[of] for name, of in same.items() if of in known}
    return known | _FIRST if known else {}


def tasks(exported: Mapping[str, str]) -> str | None:
    """The tasks of a job on all its nodes; None where nothing says how many."""
    if whole := whole_number(exported, TASKS):
        return str(whole)
    each = whole_number(exported, TASKS_PER_NODE)
    return str(each * (whole_number(exported, NODES) or 1)) if each else None


def whole_number(exported: Mapping[str, str], name: str) -> int | None:
    """A variable of these as a number; None where it is not set."""
    return _number(_AMOUNT, exported.get(name))


def without_variables(env: Mapping[str, str]) -> dict[str, str]:
    """What is left for a program that runs elsewhere: libraries that see these wait for a Slurm that is not there."""
    return {name: value for name, value in env.items() if not name.startswith(_PREFIX)}


def _of_resources(gres: str | None) -> int | None:
    """``gpu:8``, ``gpu:h100:8``, ``gpu``."""
    for part in (gres or "").split(","):
        if part == "gpu" or part.startswith("gpu:"):
            last = part.partition("(")[0].rpartition(":")[2]
            return int(last) if last.isdecimal() and len(last) <= 6 else 1
    return None


def _number(pattern: "re.Pattern[str]", text: str | None) -> int | None:
    match = pattern.fullmatch(text or "")
    return int(match[1]) if match and int(match[1]) > 0 else None
