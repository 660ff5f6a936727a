"""Jobs are held only where that is allowed, shares hold the need, and every failure ends in the user's own request."""

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kopt.core.decision import Mode
from kopt.core.gpu_catalogue import find_gpu
from kopt.core.prediction import ModelVersion, Prediction
from kopt.core.units import GIB, WHOLE_GPU, Bytes, MilliGpu
from kopt.core.workload.executor import Executor
from kopt.core.workload.profile import DryRun, Spread
from kopt.core.workload.sizing import ShareKind, WorkloadProfile
from kopt.policies.sizing.profiling import (
    Attempts,
    JobSnapshot,
    PartitionOffer,
    ProfilingSettings,
    after_out_of_memory,
    has_expired,
    is_over_budget,
    need_of,
    request_for,
    waits_for_dry_run,
)
from kopt.policies.sizing.profiling_pod import Allowed, DryRunSettings, profiling_job, redirected

SETTINGS = ProfilingSettings()
WITH_FRACTIONS = ProfilingSettings(fractions=True)
JOB = JobSnapshot(Mode.ENFORCE, True, WHOLE_GPU, "nvidia.com/gpu", executor=Executor.HAMI)
H100, MI300X = find_gpu("H100"), find_gpu("MI300X")
OFFERS = [
    *(PartitionOffer(f"nvidia.com/mig-{one.name}", H100.name, one) for one in H100.partitions),
    *(PartitionOffer(f"amd.com/{one.name.lower()}", MI300X.name, one) for one in MI300X.partitions),
]


def dry_run(peak_bytes: int, gpu: str = H100.name, activity: float = 0.1, **changes: Any) -> DryRun:
    profile = WorkloadProfile(gpu, Bytes(peak_bytes), 120.0, 240, True, activity)
    return replace(DryRun(profile, activity=Spread(activity, activity, activity)), **changes)


def need(high: float, **changes: Any) -> Prediction:
    found = Prediction(high * 0.9, high * 0.8, high, 0.95, "bytes", 0.95, ModelVersion("sizing", "3"))
    return replace(found, **changes)


def test_an_enforced_job_of_an_unknown_type_waits() -> None:
    assert waits_for_dry_run(JOB, measured=False, settings=SETTINGS).reason.code == "UNKNOWN_SIZE"


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"mode": Mode.OBSERVE}, "MODE"),
        ({"mode": Mode.ANNOTATE}, "MODE"),
        ({"managed": False}, "UNMANAGED"),
        ({"gpus": MilliGpu(0)}, "NO_GPU"),
        ({"opted_out": True}, "OPT_OUT"),
        ({"states_size": True}, "SIZE_STATED"),
        ({"started": True}, "STARTED"),
        ({"finished": True}, "STARTED"),
        ({"stopped": True}, "SUSPENDED"),
        ({"queued": True, "admitted": True}, "ADMITTED"),
        ({"held_by_others": True}, "HELD"),
        ({"has_command": False}, "NO_COMMAND"),
    ],
)
def test_whatever_speaks_against_it_keeps_a_job_going(changes: dict[str, Any], code: str) -> None:
    verdict = waits_for_dry_run(replace(JOB, **changes), measured=False, settings=SETTINGS)
    assert (verdict.yes, verdict.reason.code) == (False, code)
    assert not waits_for_dry_run(JOB, measured=True, settings=SETTINGS).yes


@given(st.floats(-1e6, 1e6))
def test_no_job_is_held_beyond_its_budget(held_for_s: float) -> None:
    assert is_over_budget(held_for_s, SETTINGS) == (held_for_s < -60 or held_for_s >= SETTINGS.budget_s)


def test_a_profile_expires_with_age_and_with_its_image() -> None:
    def expired(age_s: float, image_now: str = "a", failed: bool = False) -> bool:
        return has_expired(age_s, failed=failed, image="a", image_now=image_now, settings=SETTINGS)

    assert not expired(0)
    assert not expired(SETTINGS.lasts_s - 1, "")
    assert expired(SETTINGS.lasts_s)
    assert expired(0, "b")
    assert expired(SETTINGS.failed_lasts_s, failed=True)


@pytest.mark.parametrize(
    ("peak_gib", "gpu", "activity", "resource"),
    [
        (5, H100.name, 0.05, "nvidia.com/mig-1g.10gb"),
        (15, H100.name, 0.05, "nvidia.com/mig-1g.20gb"),
        (5, H100.name, 0.4, "nvidia.com/mig-3g.40gb"),
        (20, MI300X.name, 0.1, "amd.com/cpx_nps4"),
    ],
)
def test_the_smallest_partition_that_holds_memory_and_work_is_asked_for(
    peak_gib: int, gpu: str, activity: float, resource: str
) -> None:
    found = request_for(JOB, need(peak_gib * GIB), dry_run(peak_gib * GIB, gpu, activity), OFFERS, SETTINGS)
    assert (found.kind, found.resource) in {
        (ShareKind.PARTITION, resource),
        (ShareKind.PARTITION, resource.replace("nps4", "nps1")),
    }


def test_a_queues_quota_is_not_passed_by_with_a_share_that_it_does_not_count() -> None:
    queued = replace(JOB, queued=True)
    assert request_for(queued, need(5 * GIB), dry_run(5 * GIB), [], WITH_FRACTIONS).kind is ShareKind.WHOLE
    assert request_for(queued, need(5 * GIB), dry_run(5 * GIB), OFFERS, WITH_FRACTIONS).kind is ShareKind.PARTITION


def test_where_nothing_smaller_is_on_offer_the_request_stays() -> None:
    assert request_for(JOB, need(5 * GIB), dry_run(5 * GIB), [], SETTINGS).kind is ShareKind.WHOLE
    found = request_for(JOB, need(5 * GIB), dry_run(5 * GIB), [], WITH_FRACTIONS)
    assert (found.kind, found.milli_gpu) == (ShareKind.FRACTION, 100)


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"gpus": MilliGpu(8000)}, "SEVERAL_GPUS"),
        ({"pods": 4}, "SEVERAL_PODS"),
        ({"retriable": False}, "NOT_RETRIABLE"),
    ],
)
def test_jobs_that_shares_do_not_suit_keep_whole_gpus(changes: dict[str, Any], code: str) -> None:
    found = request_for(replace(JOB, **changes), need(GIB), dry_run(GIB), OFFERS, WITH_FRACTIONS)
    assert (found.kind, found.reason.code) == (ShareKind.WHOLE, code)


@pytest.mark.parametrize(
    "run", [dry_run(GIB, capped=True), dry_run(GIB, out_of_memory=True), dry_run(0), None, dry_run(GIB, "no such GPU")]
)
def test_a_run_that_did_not_show_the_need_shrinks_nothing(run: DryRun | None) -> None:
    assert request_for(JOB, need(GIB), run, OFFERS, WITH_FRACTIONS).kind is ShareKind.WHOLE


def test_a_dry_run_alone_counts_only_if_it_was_steady_and_long_enough() -> None:
    steady = need_of(None, dry_run(10 * GIB), SETTINGS)
    assert steady is not None
    assert steady.high == pytest.approx(11.5 * GIB)
    short = dry_run(10 * GIB)
    for weak in (
        None,
        dry_run(GIB, capped=True),
        replace(short, profile=replace(short.profile, steady=False)),
        replace(short, profile=replace(short.profile, samples=10)),
    ):
        assert need_of(None, weak, SETTINGS) is None
    refused = need(1, fallback=True)
    assert need_of(refused, None, SETTINGS) is refused
    assert need_of(need(7), dry_run(GIB), SETTINGS) == need(7)


sizes = st.integers(1 << 20, 200 * GIB)
runs = st.builds(dry_run, sizes, st.sampled_from([H100.name, MI300X.name, "A30"]), st.floats(0, 1))
settings = st.sampled_from([SETTINGS, WITH_FRACTIONS])
offers = st.lists(st.sampled_from(OFFERS), unique=True)


@given(sizes, runs, offers, settings)
def test_a_share_always_holds_the_need_and_is_never_more_than_the_gpu(
    high: int, run: DryRun, offered: list[PartitionOffer], chosen: ProfilingSettings
) -> None:
    found = request_for(JOB, need(float(high)), run, offered, chosen)
    model = find_gpu(run.profile.gpu)
    assert found.milli_gpu <= WHOLE_GPU
    if found.kind is not ShareKind.WHOLE:
        assert max(high, run.profile.peak_bytes) <= found.bytes <= model.usable_bytes
    if found.kind is ShareKind.FRACTION:
        assert found.milli_gpu % chosen.step_milli == 0
        assert found.milli_gpu >= run.profile.activity * WHOLE_GPU - 1  # type: ignore[operator]
    if found.kind is ShareKind.PARTITION:
        assert found.resource in {one.resource for one in offered if one.gpu == model.name}


@given(sizes, runs, offers, settings)
def test_each_try_gets_more_and_after_two_the_job_has_its_own_request_again(
    high: int, run: DryRun, offered: list[PartitionOffer], chosen: ProfilingSettings
) -> None:
    found = request_for(JOB, need(float(high)), run, offered, chosen)
    granted, tries = found.bytes, 0
    while found.kind is not ShareKind.WHOLE:
        found = after_out_of_memory(JOB, Attempts(tries, granted, Bytes(high)), need(float(high)), run, offered, chosen)
        assert found.kind is ShareKind.WHOLE or found.bytes > granted
        granted, tries = found.bytes, tries + 1
        assert tries <= chosen.retries + 1


@pytest.mark.parametrize("wrong", [{"retries": 3}, {"growth": 1.0}, {"budget_s": 1.0}, {"duration_s": 0.0}])
def test_settings_that_would_break_a_promise_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        ProfilingSettings(**wrong)


# --- the profiling pod ---

names = st.sampled_from(["a", "b", "c"])
volumes = st.sampled_from(
    [
        {"secret": {"secretName": "login"}},
        {"emptyDir": {}},
        {"persistentVolumeClaim": {"claimName": "ckpt"}},
        {"hostPath": {"path": "/data"}},
        {"nfs": {"server": "s", "path": "/"}},
        {"configMap": {"name": "c"}},
        {"csi": {"driver": "d", "nodePublishSecretRef": {"name": "login"}}},
        {"awsElasticBlockStore": {"volumeID": "v"}},
        {
            "projected": {
                "sources": [
                    {"secret": {"name": "login"}},
                    {"configMap": {"name": "c"}},
                    {"serviceAccountToken": {"path": "t"}},
                ]
            }
        },
    ]
)
env = st.sampled_from(
    [
        {"name": "AWS_SECRET_ACCESS_KEY", "value": "geheim"},
        {"name": "HF_TOKEN", "value": "geheim"},
        {"name": "X", "valueFrom": {"secretKeyRef": {"name": "login", "key": "geheim"}}},
        {"name": "LR", "value": "1"},
        {"name": "WORLD_SIZE", "value": "64"},
        {"name": "MAX_TOKENS", "value": "4096"},
        {"name": "OUTPUT_DIR", "value": "/mnt/o"},
        {"name": "WANDB_API_KEY", "value": "geheim"},
    ]
)
parts = st.lists(
    st.sampled_from(
        [
            "--output_dir",
            "/mnt/out",
            "--output_dir=/mnt/out",
            "--nnodes=8",
            "--nnodes",
            "8",
            "--batch-size",
            "32",
            "--save",
            "train.py",
        ]
    ),
    max_size=8,
)


@st.composite
def jobs(draw: st.DrawFn, annotation: str = "") -> dict[str, Any]:
    found = {name: draw(volumes) | {"name": name} for name in ("a", "b", "c")}
    mounts = draw(st.lists(names, unique=True))
    container = {
        "name": "train",
        "image": "team/train:1",
        "command": ["torchrun", *draw(parts)],
        "args": draw(parts),
        "env": draw(st.lists(env)),
        "envFrom": [{"secretRef": {"name": "login"}}, {"configMapRef": {"name": "c"}}],
        "volumeMounts": [{"name": name, "mountPath": f"/mnt/{name}", "mountPropagation": "None"} for name in mounts],
        "lifecycle": {"postStart": {"exec": {"command": ["true"]}}},
        "livenessProbe": {},
        "ports": [],
        "resources": {"limits": {"nvidia.com/gpu": 1}},
    }
    setup = container | {"name": "setup", "command": ["sh"], "args": []}
    spec = {
        "containers": [{"name": "logs", "image": "l"}, container],
        "initContainers": [setup],
        "hostNetwork": True,
        "volumes": list(found.values()),
        "serviceAccountName": "writer",
        "hostPID": True,
        "priority": 7,
        "nodeSelector": {"gpu": "h100"},
    }
    template = {"metadata": {"labels": {"app": "train"}, "annotations": {"x": "y"}}, "spec": spec}
    metadata = {"name": "train", "namespace": "a", "uid": "u", "annotations": {"kaiwo.ai/profiling-allow": annotation}}
    return {
        "metadata": metadata,
        "spec": {"parallelism": 8, "completions": 8, "completionMode": "Indexed", "template": template},
    }


def made(job: dict[str, Any]) -> dict[str, Any]:
    settings = DryRunSettings("kopt-agents:1", "kopt-profiling")
    return profiling_job(job, 1, name="p", digest="d" * 32, settings=settings, labels={"part-of": "x"}, processes=8)


@given(jobs())
def test_a_profiling_pod_has_no_secrets_and_writes_nothing_that_stays(job: dict[str, Any]) -> None:
    before = json.dumps(job)
    found = made(job)
    assert json.dumps(job) == before, "the user's Job is left alone"
    spec = found["spec"]["template"]["spec"]
    text = json.dumps(spec)
    assert "geheim" not in text
    assert "login" not in text
    own = {one["name"] for one in spec["volumes"] if "emptyDir" in one}
    for container in (*spec["containers"], *spec["initContainers"]):
        for mount in container["volumeMounts"]:
            assert mount["name"] in own or mount["readOnly"] is True
            assert mount["name"] in own or "mountPropagation" not in mount
    assert not spec["automountServiceAccountToken"]
    assert not {"serviceAccountName", "hostNetwork", "hostPID", "priority"} & spec.keys()


@given(jobs())
def test_a_profiling_job_is_one_pod_of_the_lowest_priority_that_no_service_finds(job: dict[str, Any]) -> None:
    found = made(job)
    assert (found["spec"]["parallelism"], found["spec"]["completions"], found["spec"]["backoffLimit"]) == (1, 1, 0)
    template = found["spec"]["template"]
    assert "app" not in template["metadata"]["labels"]
    assert template["spec"]["priorityClassName"] == "kopt-profiling"
    (container,) = template["spec"]["containers"]
    assert container["resources"] == {"limits": {"nvidia.com/gpu": 1}}
    for setup in template["spec"]["initContainers"]:
        kinds = {name for amounts in setup["resources"].values() for name in amounts}
        assert kinds <= {"nvidia.com/gpu"}, "no quota that the user's own Job does not need"
    assert not {"lifecycle", "livenessProbe", "ports", "args"} & container.keys()
    world = [one["value"] for one in container["env"] if one["name"] == "WORLD_SIZE"]
    assert set(world) <= {"1"}
    assert "--nnodes=8" not in container["command"]
    assert found["metadata"]["ownerReferences"][0]["uid"] == "u"


def test_outputs_are_redirected_and_the_rest_of_the_command_stays() -> None:
    parts = [
        "python",
        "t.py",
        "--output_dir",
        "/o",
        "--save=/s",
        "--lr",
        "1",
        "--nnodes",
        "4",
        "--node_rank=3",
        "--log-dir",
    ]
    assert redirected(parts, Allowed()) == [
        "python",
        "t.py",
        "--output_dir",
        "/kopt/outputs/output_dir",
        "--save=/kopt/outputs/save",
        "--lr",
        "1",
        "--nnodes",
        "1",
        "--node_rank=0",
        "--log-dir",
    ]
    assert redirected(parts[:5], Allowed(writes=True)) == parts[:5]
    overrides = ["save", "trainer.output_dir=/o", "optim.lr=1", "log_dir=/l"]
    assert redirected(overrides, Allowed()) == [
        "save",
        "trainer.output_dir=/kopt/outputs/trainer.output_dir",
        "optim.lr=1",
        "log_dir=/kopt/outputs/log_dir",
    ]


@given(jobs())
def test_variables_decide_what_they_did_but_where_outputs_go(job: dict[str, Any]) -> None:
    own = job["spec"]["template"]["spec"]["containers"][1]["env"]
    (container,) = made(job)["spec"]["template"]["spec"]["containers"]
    found = {one["name"]: one.get("value") for one in container["env"]}
    asked = {one["name"] for one in own}
    assert ("MAX_TOKENS" in found) == ("MAX_TOKENS" in asked), "a size is no secret"
    assert found.get("OUTPUT_DIR") == ("/kopt/outputs/OUTPUT_DIR" if "OUTPUT_DIR" in asked else None)
    assert found["KOPT_PROFILE_WORLD_SIZE"] == "8"
    assert found["AWS_EC2_METADATA_DISABLED"] == "true", "nor is the node's own account the dry run's"


@given(jobs("secrets,writes"))
def test_what_the_user_allows_is_left(job: dict[str, Any]) -> None:
    spec = made(job)["spec"]["template"]["spec"]
    assert spec["volumes"][:3] == job["spec"]["template"]["spec"]["volumes"]
    assert spec["serviceAccountName"] == "writer"
    (container,) = spec["containers"]
    assert not any(mount.get("readOnly") for mount in container["volumeMounts"])
