"""Jobs of several pods on the real API server: less is asked for before Kueue counts it, and only in enforce (K3).

The webhook's own process asks an endpoint with the shipped model; Kueue makes its Workloads of what the server stored.
"""

import copy
import itertools
from collections.abc import Iterator
from typing import Any

import pytest
from admission.conftest import Webhooks, running
from admission.submitting import placed
from admission.whole_jobs import ASKED, GPU, JOBS, NEEDED, PODS, RUNTIME, Object, asked, ray_job, runtime
from controlplane import build
from controlplane.kueue import Kueue, workload_of
from controlplane.plane import ControlPlane
from controlplane.processes import wait_for

from tests.cli.endpoints import shipped_endpoint

QUEUE = "gpus"
CRDS = ("jobset", "kuberay", "mpi-operator", "trainer")
_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def plane(control_plane: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A control plane with MPI jobs of v2beta1, which Kueue queues; others have the training operator's."""
    own = ControlPlane(tmp_path_factory.mktemp("whole-jobs"))
    own.install_crds(*CRDS)
    own.apply_crds([path for path in build.custom_resources("training-operator") if "mpijobs" not in path.name])
    yield own
    own.stop()


@pytest.fixture(scope="module")
def kueue(plane: ControlPlane) -> Iterator[Kueue]:
    beside = Kueue(plane)
    yield beside
    beside.stop()


@pytest.fixture(scope="module")
def sized(plane: ControlPlane, kueue: Kueue, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Webhooks]:
    plane.api.create(runtime())
    with shipped_endpoint(tmp_path_factory.mktemp("endpoint")) as url:
        webhooks = running(plane)
        one = next(webhooks)
        one.clear()
        one.start("--sizing", url)
        yield one
        webhooks.close()


def submitted(webhooks: Webhooks, workload: Object, space: str) -> Object:
    made = placed(copy.deepcopy(workload), space, name=f"one-{next(_numbers)}", labels={})
    return dict(webhooks.api.create(made))


def counted(plane: ControlPlane, made: Object) -> tuple[int, int]:
    """GPUs of each pod and pods, of the sets of pods with GPUs of Kueue's Workload."""
    found = set()
    for pods in workload_of(plane, made)["spec"]["podSets"]:
        requests = [one["resources"].get("requests", {}) for one in pods["template"]["spec"]["containers"]]
        limits = [one["resources"].get("limits", {}) for one in pods["template"]["spec"]["containers"]]
        gpus = max(int(amounts.get(GPU, 0)) for amounts in (*requests, *limits))
        if gpus:
            found.add((gpus, pods["count"]))
    (gpus,) = {gpus for gpus, _ in found}
    return gpus, sum(count for _, count in found)


def policy(webhooks: Webhooks, mode: str) -> None:
    webhooks.policy(mode=mode, queues={"default": QUEUE}, sizing={"minConfidencePercent": 1})


@pytest.mark.long
@pytest.mark.parametrize("name", JOBS)
def test_kueue_counts_a_gpu_for_each_process(name: str, sized: Webhooks, kueue: Kueue) -> None:
    policy(sized, "enforce")
    space = sized.namespace()
    with kueue.queue(space, {GPU: 64, "cpu": 100}, QUEUE):

        def created() -> Object | None:
            # The first question warms the model, and may take longer than a workload waits.
            made = submitted(sized, JOBS[name], space)
            return made if set(asked(made)) == {str(NEEDED)} else None

        made = wait_for(created)
        assert made is not None
        assert f"'kaiwo.ai/requested-gpus': '{ASKED}'" in str(made)
        reason = made["metadata"]["annotations"]["kaiwo.ai/recommended-reason"]
        assert "Its 2 processes have a GPU each; it asks for 8 GPUs." in reason
        if name != "Deployment":
            # Kueue counts a Deployment's pods one by one, when there are any, and the nodes of a TrainJob's runtime:
            # numNodes is not read (v0.15, ``pkg/controller/jobs/trainjob``).
            pods = 1 if name.startswith("TrainJob") else PODS[name]
            assert counted(sized.plane, made) == (NEEDED, pods)


@pytest.mark.long
@pytest.mark.parametrize("name", JOBS)
def test_in_observe_kueue_counts_what_was_asked_for(name: str, sized: Webhooks, kueue: Kueue) -> None:
    policy(sized, "observe")
    space = sized.namespace()
    with kueue.queue(space, {GPU: 64, "cpu": 100}, QUEUE):
        labelled = JOBS[name] | {"metadata": JOBS[name]["metadata"] | {"labels": {}}}
        made = placed(copy.deepcopy(labelled), space, name=f"one-{next(_numbers)}")
        made["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": QUEUE}
        stored = dict(sized.api.create(made))
        assert asked(stored) == asked(JOBS[name])
        assert "kaiwo.ai/recommended" not in str(stored)
        if name != "Deployment":
            assert counted(sized.plane, stored)[0] == ASKED


@pytest.mark.long
def test_what_opts_out_and_what_ray_decides_keep_their_gpus(sized: Webhooks, kueue: Kueue) -> None:
    policy(sized, "enforce")
    space = sized.namespace()
    with kueue.queue(space, {GPU: 64, "cpu": 100}, QUEUE):
        for workload in (ray_job(reserved=None), ray_job(pods=3)):
            assert set(asked(submitted(sized, workload, space))) == {str(ASKED)}
    policy(sized, "annotate")
    out = placed(copy.deepcopy(JOBS["PyTorchJob"]), space, annotations={"kaiwo.ai/opt-out": "true"})
    stored = sized.api.create(out)
    assert set(asked(stored)) == {str(ASKED)}
    assert "kaiwo.ai/recommended" not in str(stored)


@pytest.mark.long
def test_the_runtime_of_train_jobs_stays_as_it_is(sized: Webhooks) -> None:
    stored = sized.api.get("trainer.kubeflow.org/v1alpha1", "ClusterTrainingRuntime", RUNTIME)
    assert set(asked(stored)) == {str(ASKED)}
