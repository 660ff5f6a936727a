"""Jobs of several pods of every kind, with the shipped model: webhook, pages and `kopt diff` advise the same."""

import asyncio
import copy
from collections.abc import Iterator
from typing import Any

import orjson
import pytest
from admission.patching import patched
from admission.whole_jobs import (
    ASKED,
    JOBS,
    NEEDED,
    PODS,
    Object,
    asked,
    mpi_job,
    pytorch_job,
    ray_job,
    runtime,
    train_job,
)
from admission.workloads import review

from kopt.cluster.admission.review import parse_review
from kopt.cluster.workloads.kinds import BY_KEY
from kopt.cluster.workloads.requests.external import ObjectRef
from kopt.controllers.admission.answers import Admission
from kopt.controllers.admission.evaluation import FixedState
from kopt.controllers.admission.handlers import Admissions
from kopt.controllers.admission.policy import parse_policy
from kopt.controllers.admission.sizes.cache import SizingCache, SizingSettings
from kopt.controllers.overview.running_workloads import PodKind, pods_of
from kopt.core.units import WHOLE_GPU
from kopt.serving.client.blocking import PredictionClient
from kopt.serving.client.client import AsyncPredictionClient
from tests.cli.endpoints import shipped_endpoint

every_job = pytest.mark.parametrize("name", JOBS)


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with shipped_endpoint(tmp_path_factory.mktemp("endpoint")) as address:
        with PredictionClient(address, deadline_s=60.0) as client:
            # The first question loads the model, for longer than a pod waits.
            client.sizing({"workload": f"torchrun --nproc-per-node 2 {SCRIPT}"})
        yield address


def found(reference: ObjectRef) -> Object | None:
    return runtime() if reference.resource.kind == "ClusterTrainingRuntime" else None


class Reader:
    """The API server with one runtime."""

    async def read_namespace(self, name: str) -> None:
        return None

    async def read(self, location: ObjectRef) -> Object | None:
        return found(location)


async def admit(workload: Object, url: str, mode: str = "enforce") -> tuple[Object, Admission]:
    spec = {
        "mode": mode,
        "queues": {"default": "main"},
        "sizing": {"minConfidencePercent": 1, "budgetMilliseconds": 2000},
    }
    policy = parse_policy({"metadata": {"name": "default"}, "spec": spec})
    async with AsyncPredictionClient(url, deadline_s=30.0) as client:
        sizes = SizingCache(client.sizing, SizingSettings(pause_s=0.0))
        admissions = Admissions(FixedState(policy), sizes, Reader())
        for _ in range(5):
            # An answer may come too late for the workload that asked first.
            admission = await admissions.mutate(parse_review(orjson.dumps(review(workload))))
            await asyncio.sleep(0.05)
        await sizes.close()
    return patched(workload, admission.answer.patch), admission


def without_useful_gpus(workload: Object) -> Object:
    """The curve behind these annotations takes seconds: a later review may have them where an earlier one had not."""
    metadata = workload["metadata"]
    kept = {name: note for name, note in metadata["annotations"].items() if not name.startswith("kaiwo.ai/useful-gpus")}
    return {**workload, "metadata": {**metadata, "annotations": kept}}


def pod_kinds(workload: Object) -> list[PodKind]:
    document = copy.deepcopy(workload)
    document["metadata"].setdefault("namespace", "research")
    kind = BY_KEY[document["apiVersion"].rpartition("/")[0], document["kind"]]
    return list(pods_of(document, kind, kind.resource, found))


@every_job
async def test_in_enforce_each_pod_asks_for_a_gpu_for_each_of_its_processes(name: str, url: str) -> None:
    after, _ = await admit(JOBS[name], url)
    assert set(asked(after)) == {str(NEEDED)}
    assert f'"kaiwo.ai/requested-gpus":"{ASKED}"' in orjson.dumps(after).decode()
    assert "Its 2 processes have a GPU each" in after["metadata"]["annotations"]["kaiwo.ai/recommended-reason"]
    again, _ = await admit(after, url)
    assert without_useful_gpus(again) == without_useful_gpus(after), "reviews come twice"


@every_job
@pytest.mark.parametrize("mode", ["observe", "annotate"])
async def test_only_enforce_changes_what_is_asked_for(name: str, mode: str, url: str) -> None:
    after, admission = await admit(JOBS[name], url, mode)
    assert after["spec"] == JOBS[name]["spec"] or mode == "annotate"
    assert asked(after) == asked(JOBS[name])
    (record,) = [record for record in admission.records if record.row == "sizing"]
    assert "Its 2 processes have a GPU each" in record.message
    assert ("kaiwo.ai/recommended-memory" in after["metadata"].get("annotations", {})) == (mode == "annotate")


@every_job
async def test_the_pages_and_the_command_line_change_what_the_webhook_does(name: str, url: str) -> None:
    after, _ = await admit(JOBS[name], url)
    changed = copy.deepcopy(JOBS[name])
    changed["metadata"]["namespace"] = "research"
    pods = 0
    with PredictionClient(url, deadline_s=30.0) as client:
        for index in range(len(pod_kinds(changed))):
            pod_kind = pod_kinds(changed)[index]
            assert pod_kind.question is not None
            advice = pod_kind.advice(client.sizing(pod_kind.question), 0.0)
            assert (advice.count, advice.saved_milli_gpu) == (NEEDED, (ASKED - NEEDED) * WHOLE_GPU)
            assert (advice.low_bytes or 0) <= advice.bytes
            change = pod_kind.patch(advice)
            assert change is not None
            changed = changed | {"spec": change.after["spec"]}
            pods += pod_kind.pods.pods
    assert pods == PODS[name]
    if name != "RayJob":
        assert asked(changed) == asked(after)
    else:
        assert changed["spec"]["entrypointNumGpus"] == after["spec"]["entrypointNumGpus"] == NEEDED
        (group,) = after["spec"]["rayClusterSpec"]["workerGroupSpecs"]
        assert group["rayStartParams"]["num-gpus"] == str(NEEDED)


def with_spec(workload: Object, **fields: Any) -> Object:
    return workload | {"spec": workload["spec"] | fields}


def launching(command: str, **fields: Any) -> Object:
    made = with_spec(mpi_job(), **fields)
    made["spec"]["mpiReplicaSpecs"]["Launcher"]["template"]["spec"]["containers"][0]["command"] = command.split()
    return made


def in_launcher(**fields: Any) -> Object:
    made = with_spec(mpi_job(), **fields)
    roles = made["spec"]["mpiReplicaSpecs"]
    roles["Launcher"]["template"]["spec"]["containers"][0]["resources"] = roles["Worker"]["template"]["spec"][
        "containers"
    ][0]["resources"]
    return made


TRAIN = mpi_job()["spec"]["mpiReplicaSpecs"]["Launcher"]["template"]["spec"]["containers"][0]["command"][5:]
SCRIPT = " ".join(TRAIN)
STAY = {
    "torchrun-by-default": with_spec(pytorch_job(), nprocPerNode="auto"),
    "no-number-of-processes": {
        **pytorch_job(),
        "spec": {key: value for key, value in pytorch_job()["spec"].items() if key != "nprocPerNode"},
    },
    "more-processes-than-slots": launching(f"mpirun -np 5 python {SCRIPT}"),
    "other-hosts": launching(f"mpirun -np 4 --hostfile /mine python {SCRIPT}"),
    "a-second-launcher": launching(f"mpirun -np 2 torchrun --nproc-per-node 4 {SCRIPT}"),
    "slots-for-every-gpu": launching(f"mpirun python {SCRIPT}", slotsPerWorker=8),
    "the-head-without-gpus": ray_job(reserved=None),
    "one-of-several-pods": ray_job(pods=2),
    "a-part-of-the-group": ray_job(reserved=4),
    "a-script-of-rays": with_spec(ray_job(), entrypoint=f"python {SCRIPT}"),
    "any-node-with-a-resource": with_spec(ray_job(), entrypointResources='{"big": 1}'),
    "an-unknown-runtime": with_spec(train_job(), runtimeRef={"kind": "Elsewhere", "name": "x"}),
}
SILENT = {
    "the-head-without-gpus": "RAY_WORKERS",
    "one-of-several-pods": "RAY_WORKERS",
    "a-part-of-the-group": "RAY_WORKERS",
    "any-node-with-a-resource": "RAY_WORKERS",
    "an-unknown-runtime": "RUNTIME_UNKNOWN",
}


@pytest.mark.parametrize("name", STAY)
async def test_without_evidence_the_gpus_stay_and_the_reason_is_given(name: str, url: str) -> None:
    workload = STAY[name]
    after, admission = await admit(workload, url)
    assert asked(after) == asked(workload)
    assert "requested-gpus" not in str(after)
    (record,) = [record for record in admission.records if record.row == "sizing"]
    if name in SILENT:
        assert record.code == SILENT[name]
        assert record.message.startswith("Nothing is advised, as ")
        assert [pod_kind.silence for pod_kind in pod_kinds(workload)] == [record.message]
        assert all(pod_kind.question is None for pod_kind in pod_kinds(workload))


async def test_slots_decide_where_mpirun_is_not_told_a_number(url: str) -> None:
    after, _ = await admit(launching(f"mpirun python {SCRIPT}", slotsPerWorker=3), url)
    assert set(asked(after)) == {"3"}


async def test_a_launcher_that_is_no_worker_is_advised_nothing(url: str) -> None:
    after, admission = await admit(in_launcher(), url)
    assert sorted(asked(after)) == ["2", "2", "8", "8"]
    said = " ".join(record.message for record in admission.records if record.row == "sizing")
    assert "the launcher's command starts its processes on the workers" in said
    both, _ = await admit(in_launcher(runLauncherAsWorker=True), url)
    assert set(asked(both)) == {"2"}


async def test_an_option_of_torchrun_wins_over_the_operators_variable(url: str) -> None:
    workload = pytorch_job()
    for role in workload["spec"]["pytorchReplicaSpecs"].values():
        role["template"]["spec"]["containers"][0]["command"][1:1] = ["--nproc-per-node", "4"]
    after, _ = await admit(workload, url)
    assert set(asked(after)) == {"4"}


async def test_a_runtime_is_never_changed_and_its_request_is_written_into_the_job(url: str) -> None:
    before = train_job(asks=False)
    after, admission = await admit(before, url)
    paths = {operation["path"] for operation in admission.answer.patch}
    assert {path for path in paths if "trainer" in path} == {"/spec/trainer/resourcesPerNode"}
    assert after["metadata"]["annotations"]["kaiwo.ai/requested-gpus"] == str(ASKED)
    assert after["spec"]["trainer"]["resourcesPerNode"]["limits"]["cpu"] == "1", "the runtime's other amounts"
    (pods,) = pod_kinds(before)
    assert pods.label == "trainjob/trainjob-by-runtime"
