"""``kopt recommend --running``, ``explain``, ``diff`` and ``apply --dry-run`` on a real control plane and endpoint."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from kopt.cluster.client.resources import CONFORMANCE_POLICIES, DEPLOYMENTS, JOBS, NODES, PODS, Object
from tests.cli import running_cluster
from tests.cli.running_cluster import Known, Kopt, deployment, remembered, template

pytestmark = pytest.mark.cluster
url, known, kopt, hami = running_cluster.url, running_cluster.known, running_cluster.kopt, running_cluster.hami


@pytest.mark.usefixtures("hami")
async def test_workloads_are_listed_with_what_they_ask_need_and_would_give_back(known: Known, kopt: Kopt) -> None:
    chat = template("python", "serve.py")
    await remembered(known, chat)
    await known.kube.create(DEPLOYMENTS, deployment("chat", chat), known.namespace)
    unknown = template("./binary", restartPolicy="Never")
    await known.kube.create(JOBS, {"metadata": {"name": "unknown"}, "spec": {"template": unknown}}, known.namespace)
    done = await kopt("recommend", "--running", "-o", "json")
    assert done.exit_code == 0, done.stderr
    found = {one["workload"]: one for one in json.loads(done.stdout)["recommendations"]}
    assert set(found) == {"deployment/chat", "job/unknown"}
    told = found["deployment/chat"]
    assert (told["pods"], told["asked_milli_gpu"], told["method"]) == (2, 1000, "abstract")
    assert told["saved_milli_gpu"] == 2 * (1000 - told["milli_gpu"]) > 0
    assert told["low_bytes"] <= told["peak_bytes"] <= told["high_bytes"]
    assert told["patch"] == [
        {
            "op": "add",
            "path": "/spec/template/metadata/annotations",
            "value": {"kaiwo.ai/gpu-memory": str(told["bytes"] >> 20)},
        },
        {
            "op": "replace",
            "path": "/spec/template/spec/containers/1/resources",
            "value": {"limits": {"nvidia.com/gpu": "1", "nvidia.com/gpumem": str(told["bytes"] >> 20)}},
        },
    ]
    assert found["job/unknown"]["patch"] is None
    assert "not known" in found["job/unknown"]["why"]
    table = (await kopt("recommend", "--running")).stdout
    assert "deployment/chat" in table
    assert "give back" in table


async def test_a_cluster_that_hands_out_no_shares_is_not_promised_any(known: Known, kopt: Kopt) -> None:
    chat = template("python", "serve.py")
    await remembered(known, chat)
    await known.kube.create(DEPLOYMENTS, deployment("chat", chat), known.namespace)
    (told,) = json.loads((await kopt("recommend", "--running", "-o", "json")).stdout)["recommendations"]
    assert (told["executor"], told["saved_milli_gpu"], told["patch"]) == ("none", 0, None)
    assert "NO_EXECUTOR" in {reason["code"] for reason in told["reasons"]}
    await known.kube.create(CONFORMANCE_POLICIES, stated("KAI"))
    try:
        # Its pods have no queue of KAI's, and the policy says more than the nodes.
        (told,) = json.loads((await kopt("recommend", "--running", "-o", "json")).stdout)["recommendations"]
        assert (told["executor"], told["patch"]) == ("none", None)
        body = {"metadata": {"labels": {"kai.scheduler/queue": "team"}}}
        await known.kube.patch(DEPLOYMENTS, "chat", body, known.namespace)
        (told,) = json.loads((await kopt("recommend", "--running", "-o", "json")).stdout)["recommendations"]
        assert told["executor"] == "kai"
        assert "gpu-memory" in told["patch"][0]["value"]
    finally:
        await known.kube.delete(CONFORMANCE_POLICIES, "default")


def stated(executor: str) -> Object:
    return {"metadata": {"name": "default"}, "spec": {"sizing": {"executor": executor}}}


async def test_the_gpu_is_the_one_of_the_node_that_its_pods_run_on(known: Known, kopt: Kopt) -> None:
    node = f"node-{known.namespace}"
    labels = {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}
    await known.kube.create(NODES, {"metadata": {"name": node, "labels": labels}})
    pod = template("python", "eval.py", nodeName=node) | {"metadata": {"name": "eval"}}
    try:
        await known.kube.create(PODS, pod, known.namespace)
        (told,) = json.loads((await kopt("recommend", "--running", "-o", "json")).stdout)["recommendations"]
        assert told["gpu"].startswith("H100-SXM")
    finally:
        await known.kube.delete(PODS, "eval", known.namespace, grace_s=0)
        await known.kube.delete(NODES, node)


@pytest.mark.usefixtures("hami")
async def test_a_diff_is_what_the_patch_makes_of_it_and_the_server_accepts_it(known: Known, kopt: Kopt) -> None:
    chat = template("python", "chat.py")
    await remembered(known, chat)
    await known.kube.create(DEPLOYMENTS, deployment("chat", chat), known.namespace)
    done = await kopt("diff", "deployment/chat")
    assert done.exit_code == 0, done.stderr
    added = [line[1:].strip() for line in done.stdout.splitlines() if line.startswith("+") and line[1] != "+"]
    assert added[0] == "annotations:"
    assert added[1].startswith("kaiwo.ai/gpu-memory: '")
    assert added[2].startswith("nvidia.com/gpumem: '")
    assert not [line for line in done.stdout.splitlines() if line.startswith("-") and line[1] != "-"]
    before = await known.kube.get(DEPLOYMENTS, "chat", known.namespace)
    tried = await kopt("apply", "--dry-run", "deployment/chat", "-o", "json")
    assert tried.exit_code == 0, tried.stderr
    (change,) = json.loads(tried.stdout)["changes"]
    assert (change["accepted"], change["answer"]) == (True, "")
    assert await known.kube.get(DEPLOYMENTS, "chat", known.namespace) == before, "a dry run changes nothing"
    (operations,) = yaml.safe_load_all((await kopt("diff", "-o", "patch")).stdout)
    assert change["command"] == (
        f"kubectl -n {known.namespace} patch deployments.apps chat --type json -p '{_line(operations)}'"
    )
    await known.kube.request(
        "PATCH", DEPLOYMENTS.path(known.namespace, "chat"), body=operations, content_type="application/json-patch+json"
    )
    again = json.loads((await kopt("diff", "-o", "json")).stdout)["changes"]
    assert [(one["patch"], one["why"]) for one in again] == [(None, "as advised already")]


def _line(operations: Any) -> str:
    return json.dumps(operations, separators=(",", ":"))


@pytest.mark.usefixtures("hami")
async def test_a_job_that_has_begun_is_refused_by_the_server_and_said_so(known: Known, kopt: Kopt) -> None:
    pods = template("python", "train.py", restartPolicy="Never")
    await remembered(known, pods)
    await known.kube.create(JOBS, {"metadata": {"name": "train"}, "spec": {"template": pods}}, known.namespace)
    done = await kopt("apply", "--dry-run", "job/train", "-o", "json")
    assert done.exit_code == 1
    (change,) = json.loads(done.stdout)["changes"]
    assert change["accepted"] is False
    assert "spec.template" in change["answer"]
    assert change["answer"].endswith("a Job keeps what it has: change what makes the next")


async def test_more_gpus_than_needed_are_given_back_in_limits_and_requests(known: Known, kopt: Kopt) -> None:
    pods = template("torchrun", "--nproc-per-node", "2", "train.py", gpus=4, restartPolicy="Never")
    pods["spec"]["containers"][1]["resources"]["requests"] = {"nvidia.com/gpu": "4", "memory": "1Gi"}
    await remembered(known, pods)
    job = {"metadata": {"name": "wide"}, "spec": {"suspend": True, "template": pods}}
    await known.kube.create(JOBS, job, known.namespace)
    (change,) = json.loads((await kopt("apply", "--dry-run", "-o", "json")).output)["changes"]
    assert change["saved_milli_gpu"] == 2000
    (told,) = json.loads((await kopt("diff", "-o", "json")).stdout)["changes"]
    (operation,) = told["patch"]
    assert operation["path"] == "/spec/template/spec/containers/1/resources"
    assert operation["value"]["limits"] == {"nvidia.com/gpu": "2"}
    assert operation["value"]["requests"] == {"nvidia.com/gpu": "2", "memory": "1Gi"}


async def test_a_script_that_says_no_number_of_processes_keeps_its_gpus(known: Known, kopt: Kopt) -> None:
    pods = template("python", "spawns.py", gpus=4)
    await remembered(known, pods)
    await known.kube.create(DEPLOYMENTS, deployment("spawns", pods), known.namespace)
    (told,) = json.loads((await kopt("diff", "-o", "json")).stdout)["changes"]
    assert (told["patch"], told["why"]) == (None, "as advised already")


async def test_who_opts_out_is_shown_and_left_alone(known: Known, kopt: Kopt) -> None:
    pods = template("python", "mine.py")
    await remembered(known, pods)
    document = deployment("mine", pods)
    document["metadata"]["annotations"] = {"kaiwo.ai/opt-out": "true"}
    await known.kube.create(DEPLOYMENTS, document, known.namespace)
    (told,) = json.loads((await kopt("recommend", "--running", "-o", "json")).stdout)["recommendations"]
    assert (told["patch"], told["why"]) == (None, "it opts out")
    assert told["peak_bytes"] > 0


async def test_why_is_told_with_the_model_and_what_was_decided(known: Known, kopt: Kopt) -> None:
    pods = template("python", "chat.py")
    await remembered(known, pods)
    document = deployment("chat", pods)
    document["metadata"]["annotations"] = {"kaiwo.ai/recommended-reason": "A dry run showed it."}
    await known.kube.create(DEPLOYMENTS, document, known.namespace)
    done = await kopt("explain", "deployment/chat", "-o", "json")
    assert done.exit_code == 0, done.stderr
    (told,) = json.loads(done.stdout)["explanations"]
    assert told["estimate"]["model"] == {"name": "sizing", "version": "shipped", **_digest(told)}
    assert "KNOWN_TRACE" in {one["code"] for one in told["reasons"]}
    assert {"what": "kaiwo.ai/recommended-reason", "text": "A dry run showed it."} in told["decisions"]
    table = (await kopt("explain", "deployment/chat")).stdout
    assert "A dry run showed it." in " ".join(table.split())
    named = await kopt("explain", "deployment/other")
    assert (named.exit_code, named.stdout) == (1, "")
    assert "no deployment other" in named.stderr


def _digest(told: Any) -> dict[str, str]:
    return {"digest": told["estimate"]["model"]["digest"]}


async def test_a_manifest_that_is_not_in_the_cluster_yet_has_a_diff_and_reasons(
    known: Known, kopt: Kopt, tmp_path: Path
) -> None:
    pods = template("python", "later.py", restartPolicy="Never")
    await remembered(known, pods)
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "later"}, "spec": {"template": pods}}
    path = tmp_path / "later.yaml"
    path.write_text(yaml.safe_dump(job))
    done = await kopt("diff", str(path))
    assert "kaiwo.ai/gpu-memory" in done.stdout
    assert "1 of 1 workloads would change" in done.stderr
    assert "KNOWN_TRACE" in (await kopt("explain", str(path))).stdout
    path.write_text("kind: ConfigMap\n")
    assert "holds no workload that asks for GPUs" in (await kopt("diff", str(path))).stderr


async def test_nothing_is_changed_without_a_dry_run(kopt: Kopt) -> None:
    done = await kopt("apply")
    assert (done.exit_code, done.stdout) == (2, "")
    assert "--dry-run" in done.stderr


async def test_a_cluster_or_an_endpoint_that_does_not_answer_is_one_line(
    known: Known, kopt: Kopt, monkeypatch: pytest.MonkeyPatch
) -> None:
    await known.kube.create(DEPLOYMENTS, deployment("chat", template("python", "a.py")), known.namespace)
    monkeypatch.setenv("KOPT_URL", "http://127.0.0.1:9")
    monkeypatch.setattr("kopt.cli.sizing.running_workloads.DEADLINE_S", 0.3)
    done = await kopt("diff")
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr.startswith("kopt: the prediction endpoint http://127.0.0.1:9 gives no answer")
    monkeypatch.setenv("KUBECONFIG", "/nowhere/config")
    done = await kopt("diff")
    assert (done.exit_code, done.stdout) == (1, "")
    assert "cluster" in done.stderr
