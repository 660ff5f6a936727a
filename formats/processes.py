"""How many processes with a GPU each a job has: what its command says, and what is assumed where it says nothing."""

from dataclasses import dataclass, replace

from kopt.core.workload.sizing import RequestedGpus
from kopt.formats.entrypoint import Entrypoint
from kopt.formats.entrypoint.options import MPIRUN, read_options
from kopt.formats.trainers import Load, processes_of

NO_REQUEST = RequestedGpus()
_BY_SLOTS = ("mpirun", "horovodrun")
"""Launchers that start processes where a host file has slots."""
_OWN_HOSTS = ("host", "H", "hosts", "hostfile", "machinefile", "f", "rf", "rankfile", "hf", "app", "configfile")
"""Options with other hosts, or other slots, than those of the operator's host file."""


@dataclass(frozen=True)
class Slots:
    """A job's host file: its pods, and the most processes that ``mpirun`` starts on each."""

    nodes: int = 1
    of_node: int = 1

    @property
    def total(self) -> int:
        return self.nodes * self.of_node


@dataclass(frozen=True)
class Processes:
    """Processes of a job in pods that ask for ``requested``.

    ``counted`` are the whole job's by its command and its defaults, None where these leave it to the machine;
    ``of_pod`` those of one pod where the command alone says so, and the whole job's where there is no pod.
    """

    requested: RequestedGpus = NO_REQUEST
    counted: int | None = None
    of_pod: int | None = None

    @property
    def total(self) -> int | None:
        """Those of the whole job, by default one for each GPU of a pod; None where nothing says so."""
        return self.counted or self.requested.gpus or None

    @property
    def world_size(self) -> int:
        return self.total or 1


def count_processes(
    entrypoint: Entrypoint,
    load: Load,
    requested: RequestedGpus = NO_REQUEST,
    explicit: int | None = None,
    slots: Slots | None = None,
) -> Processes:
    """The processes of what ``entrypoint`` runs; ``explicit`` is what the user states, which wins, and ``slots`` are
    those of the job's host file."""
    if slots is not None:
        return _on_slots(entrypoint, requested, slots, explicit)
    counted = explicit or processes_of(entrypoint, load)
    stated = counted if explicit or entrypoint.states_processes else None
    in_pod = stated if stated is None or not requested.gpus else -(-stated // entrypoint.nodes)
    return Processes(requested, counted, in_pod)


def _on_slots(entrypoint: Entrypoint, requested: RequestedGpus, slots: Slots, explicit: int | None) -> Processes:
    """Processes by a host file: no node gets more than its slots, and none more than there are.

    Without a number Open MPI starts one for each slot; other launchers are then not followed, nor is one that starts a
    second, takes other hosts, or more processes than there are slots.
    """
    stated = None if entrypoint.default_processes else entrypoint.world_size
    mpirun = read_options(entrypoint.launcher_arguments, MPIRUN)
    total = explicit or stated or (slots.total if entrypoint.launcher == "mpirun" else None)
    followed = entrypoint.launcher in _BY_SLOTS and not any(mpirun.get(name) for name in _OWN_HOSTS)
    stated = replace(entrypoint, default_processes=False).states_processes
    if total is None or total > slots.total or not followed or not stated:
        return Processes(requested, total)
    return Processes(requested, total, min(total, slots.of_node))
