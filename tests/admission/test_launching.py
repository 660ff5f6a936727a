"""What operators start in the pods of their jobs: never fewer GPUs than processes land on a pod, for any object."""

import copy
from typing import Any

from admission.whole_jobs import JOBS, TRAIN, Object, mpi_job, pytorch_job, ray_job, runtime, train_job
from hypothesis import given
from hypothesis import strategies as st

from kopt.cluster.workloads.launching.launching import launched
from kopt.cluster.workloads.pod_sizing import (
    annotations_path,
    job_type_of,
    question_of,
    requested_gpus,
    role_of,
    silence,
    takes_patches,
)
from kopt.cluster.workloads.requests.external import complete
from kopt.cluster.workloads.workload import Workload, read_workload
from kopt.core.workload.sizing import RequestedGpus
from kopt.formats.entrypoint import pod_entrypoint
from kopt.formats.processes import Processes, Slots, count_processes


def workload(document: Object, found: Any = None) -> Workload:
    group = document["apiVersion"].rpartition("/")[0]
    read = read_workload(document, group, document["kind"], "research", "one")
    assert read is not None
    return complete(read, lambda _: found)[0]


def processes(document: Object, found: Any = None) -> Processes:
    """Of the last set of pods with GPUs, as the endpoint counts them."""
    read = workload(document, found)
    pods = [each for each in read.pod_sets if each.gpus][-1]
    question = question_of(read, pods)
    assert question is not None
    slots = Slots(question["nodes"], question["slots_per_node"]) if "nodes" in question else None
    entrypoint = pod_entrypoint(question["workload"], lambda _: None)
    return count_processes(entrypoint, lambda _: None, requested_gpus(read, pods), slots=slots)


def filled(ranks: int, nodes: int, slots: int) -> list[int]:
    """Open MPI's own order (``--map-by slot``): a node's slots one after the other, then the next node's."""
    result = [0] * nodes
    for rank in range(ranks):
        result[rank // slots] += 1
    return result


@given(ranks=st.none() | st.integers(1, 80), nodes=st.integers(1, 8), slots=st.integers(1, 10))
def test_no_worker_runs_more_processes_than_it_keeps_gpus(ranks: int | None, nodes: int, slots: int) -> None:
    job = mpi_job()
    told = [] if ranks is None else ["-np", str(ranks)]
    job["spec"]["slotsPerWorker"] = slots
    roles = job["spec"]["mpiReplicaSpecs"]
    roles["Worker"]["replicas"] = nodes
    container = roles["Launcher"]["template"]["spec"]["containers"][0]
    container["command"] = ["mpirun", *told, "python", *TRAIN.split()]
    total = ranks or nodes * slots
    counted = processes(job)
    if total > nodes * slots:
        assert counted.of_pod is None, "Open MPI refuses to start it, or is told to oversubscribe"
        return
    assert counted.counted == total
    assert counted.of_pod == max(filled(total, nodes, slots))


@given(
    told=st.none() | st.integers(1, 16),
    variable=st.none() | st.integers(1, 16) | st.sampled_from(["auto", "gpu"]),
    workers=st.integers(0, 5),
)
def test_torchrun_takes_its_option_before_the_operators_variable(
    told: int | None, variable: int | str | None, workers: int
) -> None:
    job = pytorch_job()
    if variable is None:
        del job["spec"]["nprocPerNode"]
    else:
        job["spec"]["nprocPerNode"] = str(variable)
    roles = job["spec"]["pytorchReplicaSpecs"]
    roles["Worker"]["replicas"] = workers
    option = [] if told is None else ["--nproc-per-node", str(told)]
    for role in roles.values():
        role["template"]["spec"]["containers"][0]["command"] = ["torchrun", *option, *TRAIN.split()]
    counted = processes(job)
    each = told or (variable if isinstance(variable, int) else None)
    assert counted.of_pod == each
    assert counted.counted == (each or 8) * (1 + workers), "by default a process for each of the eight GPUs"


def test_a_train_job_runs_its_trainers_command_on_its_runtimes_nodes() -> None:
    for asks in (True, False):
        counted = processes(train_job(asks=asks), runtime())
        assert (counted.of_pod, counted.counted) == (2, 4)
    by_runtime = train_job()
    del by_runtime["spec"]["trainer"]["numProcPerNode"]
    assert processes(by_runtime, runtime()).of_pod is None
    told = copy.deepcopy(runtime())
    told["spec"]["mlPolicy"]["torch"]["numProcPerNode"] = 3
    assert processes(by_runtime, told).of_pod == 3


def test_variables_stand_behind_a_containers_own() -> None:
    job = pytorch_job()
    for role in job["spec"]["pytorchReplicaSpecs"].values():
        role["template"]["spec"]["containers"][0]["env"] = [{"name": "PET_NPROC_PER_NODE", "value": "7"}]
    assert processes(job).of_pod == 2, "of two variables of one name the last is given to the container"


def test_what_is_asked_for_beside_the_object_is_not_touched() -> None:
    for document in (pytorch_job(), mpi_job(), ray_job(), train_job()):
        before = copy.deepcopy(document)
        read = workload(document, runtime())
        for pods in read.pod_sets:
            launched(read, pods)
        assert document == before


KEYS = (
    *("command", "args", "env", "name", "value", "resources", "limits", "nvidia.com/gpu", "containers", "spec"),
    *("template", "replicas", "Launcher", "Worker", "slotsPerWorker", "mpiReplicaSpecs", "nprocPerNode", "labels"),
    *("elasticPolicy", "entrypoint", "entrypointNumGpus", "rayClusterSpec", "workerGroupSpecs", "headGroupSpec"),
    *("trainer", "numNodes", "resourcesPerNode", "podTemplateOverrides", "targetJobs", "nodeSelector", "mlPolicy"),
    *("torch", "replicatedJobs", "metadata"),
)
anything = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 9) | st.floats() | st.text(max_size=5) | st.just("torchrun --x a.py"),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(
            st.sampled_from(KEYS),
            inner,
            max_size=4,
        )
    ),
    max_leaves=16,
)


@given(kind=st.sampled_from(sorted(JOBS)), at=st.integers(0, 400), value=anything, found=anything)
def test_nothing_that_stands_in_an_object_raises(kind: str, at: int, value: Any, found: Any) -> None:
    document = copy.deepcopy(JOBS[kind])
    places = list(_places(document["spec"]))
    parent, key = places[at % len(places)]
    parent[key] = value
    odd = found if isinstance(found, dict) else runtime()
    read = workload(document, odd)
    for pods in read.pod_sets:
        assert isinstance(requested_gpus(read, pods), RequestedGpus)
        assert takes_patches(read, pods) in (True, False)
        job_type_of(read, pods)
        question_of(read, pods)
        role_of(read, pods)
        annotations_path(read, pods)
        silence(read, pods)


def _places(value: Any) -> Any:
    """Every parent and key in a document."""
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in list(entries):
        yield value, key
        yield from _places(inner)
