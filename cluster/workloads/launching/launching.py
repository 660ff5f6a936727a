"""What runs in the pods of a workload, by kind: one table for the webhook, the command line and the pages."""

from collections.abc import Callable, Mapping

from kopt.cluster.client.resources import Resource
from kopt.cluster.workloads.kinds import MPI_JOBS, PYTORCH_JOBS, RAY_JOBS, TRAIN_JOBS, PodSet
from kopt.cluster.workloads.launching.kubeflow import mpi, pytorch
from kopt.cluster.workloads.launching.launched import Launched, as_written
from kopt.cluster.workloads.launching.ray import ray_job
from kopt.cluster.workloads.launching.train_job import train_job
from kopt.cluster.workloads.workload import Workload

_KINDS: Mapping[Resource, Callable[[Workload, PodSet], Launched]] = {
    MPI_JOBS: mpi,
    PYTORCH_JOBS: pytorch,
    RAY_JOBS: ray_job,
    TRAIN_JOBS: train_job,
}
"""Kinds whose operators add to a template; all others run it as it is written."""


def launched(workload: Workload, pods: PodSet) -> Launched:
    """A set of a workload's pods as they are started."""
    of_kind = _KINDS.get(workload.kind.resource)
    return as_written(workload.document, pods) if of_kind is None else of_kind(workload, pods)


def is_put_together(workload: Workload) -> bool:
    """Whether its operator starts more, or something else, than its templates say."""
    return workload.kind.resource in _KINDS
