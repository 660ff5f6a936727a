"""PyTorchJob and MPIJob: what the training and the MPI operator add to their pods.

Sources: kubeflow/training-operator v1.9 (``pkg/controller.v1/pytorch/envvar.go``, ``elastic.go``) gives every pod
``PET_NNODES`` and ``PET_NPROC_PER_NODE``, which torchrun reads; without ``nprocPerNode`` that is ``auto``, a process
for each GPU. kubeflow/mpi-operator v0.7 (``pkg/controller/mpi_job_controller.go``) writes a host file with
``slotsPerWorker`` (1 by default) for each worker, and with ``runLauncherAsWorker`` for the launcher before them.
"""

from dataclasses import replace

from kopt.cluster.objects.fields import at, count, mapping
from kopt.cluster.workloads.kinds import PodSet
from kopt.cluster.workloads.launching.launched import Launched, as_written, gpu_container_of
from kopt.cluster.workloads.workload import Workload
from kopt.core.reason import Reason

NODES_VARIABLE, PROCESSES_VARIABLE = "PET_NNODES", "PET_NPROC_PER_NODE"
_ROLES = ("spec", "mpiReplicaSpecs")


def pytorch(workload: Workload, pods: PodSet) -> Launched:
    """A PyTorchJob's pods: what torchrun's options leave open, the operator's variables say."""
    elastic = at(workload.document, "spec", "elasticPolicy", "nProcPerNode")
    processes = elastic or at(workload.document, "spec", "nprocPerNode") or "auto"
    variables = {NODES_VARIABLE: str(workload.pods), PROCESSES_VARIABLE: str(processes)}
    return as_written(workload.document, pods).with_variables(variables)


def mpi(workload: Workload, pods: PodSet) -> Launched:
    """An MPIJob's pods: workers run what the launcher's command starts on their slots."""
    document, result = workload.document, as_written(workload.document, pods)
    if pods.spec is None or not isinstance(at(document, *_ROLES, "Launcher"), dict):
        return result
    as_worker = at(document, "spec", "runLauncherAsWorker") is True
    if pods.spec[2] == "Launcher" and not as_worker:
        text_ = "Nothing is advised, as the launcher's command starts its processes on the workers."
        return replace(result, silent=Reason("MPI_LAUNCHER", text_))
    launcher = gpu_container_of(mapping(document, *_ROLES, "Launcher", "template", "spec"))
    own = {} if launcher is None else launcher[1]
    nodes = count(document, *_ROLES, "Worker", "replicas") + as_worker
    slots = count(document, "spec", "slotsPerWorker")
    running = result.running(command=own.get("command"), args=own.get("args"), env=own.get("env"))
    return replace(running, nodes=max(1, nodes), slots=max(1, slots))
