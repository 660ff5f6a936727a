"""What torchrun takes from variables where its options do not say it: operators start processes that way.

Source: ``torch.distributed.argparse_util.env`` (PyTorch 2.8): ``--nproc-per-node`` reads ``PET_NPROC_PER_NODE``, and so
on; an option wins over its variable.
"""

from collections.abc import Mapping
from dataclasses import replace

from kopt.core.reason import Reason
from kopt.formats.entrypoint import options
from kopt.formats.entrypoint.entrypoint import Entrypoint
from kopt.formats.entrypoint.launchers import number_of

TORCHRUN_PREFIX = "PET_"
_NODES, _PROCESSES = f"{TORCHRUN_PREFIX}NNODES", f"{TORCHRUN_PREFIX}NPROC_PER_NODE"


def by_variables(entrypoint: Entrypoint, env: Mapping[str, str]) -> Entrypoint:
    """With the nodes and processes that ``env`` says; ``world_size`` is None where it leaves them to the machine."""
    if entrypoint.launcher != "torchrun" or not (_NODES in env or _PROCESSES in env):
        return entrypoint
    torchrun = options.read_options(entrypoint.launcher_arguments, options.TORCHRUN)
    nodes = entrypoint.nodes if torchrun.get("nnodes") else number_of(env.get(_NODES)) or 1
    processes = torchrun.get("nproc_per_node") or env.get(_PROCESSES) or "1"
    each = number_of(processes)
    reasons = [reason for reason in entrypoint.unknown if reason.code != "WORLD_SIZE"]
    if each is None:
        reasons.append(Reason("WORLD_SIZE", f"torchrun starts {processes!r} processes per node; give the GPUs"))
    stated = torchrun.get("nproc_per_node") or _PROCESSES in env
    return replace(
        entrypoint,
        world_size=None if each is None else each * nodes,
        nodes=nodes,
        unknown=tuple(reasons),
        default_processes=not stated or each is None,
    )
