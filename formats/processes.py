"""How many processes with a GPU each a job has: what its command says, and what is assumed where it says nothing."""

from dataclasses import dataclass

from kopt.core.workload.sizing import RequestedGpus
from kopt.formats.entrypoint import Entrypoint
from kopt.formats.trainers import Load, processes_of

NO_REQUEST = RequestedGpus()


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
    entrypoint: Entrypoint, load: Load, requested: RequestedGpus = NO_REQUEST, explicit: int | None = None
) -> Processes:
    """The processes of what ``entrypoint`` runs; ``explicit`` is what the user states, which wins."""
    counted = explicit or processes_of(entrypoint, load)
    stated = counted if explicit or entrypoint.states_processes else None
    in_pod = stated if stated is None or not requested.gpus else -(-stated // entrypoint.nodes)
    return Processes(requested, counted, in_pod)
