"""Every component as a real process with its own service account's token: it does its work, is refused nothing, and
uses every right that the chart gives it.

What the processes asked for is read from the API server's audit log and held against the rendered rules.
"""

import base64
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from cluster.holdable import SPECS
from controlplane import build
from controlplane.plane import ControlPlane, binary
from controlplane.processes import Server, free_port, wait_for

from kopt.cluster.client.resources import VOLCANO_JOBS
from kopt.cluster.holds.hold import HOLDABLE, QUEUES
from kopt.cluster.workloads.queue_trees.live import KINDS

from .rights import Right, assert_changes_only_what_is_ours, granted

KOPT = Path(sys.executable).with_name("kopt")
NAMESPACE = "kopt-system"
ADMISSION = "admissionregistration.k8s.io/v1"
SPACE = "research"
ELSEWHERE = "unlabelled"
NOWHERE = {"kubernetes.io/hostname": "nowhere"}
"""Pods that are let go here must not take the GPUs of the nodes of later tests."""
"""A namespace that the webhook does not look at."""
UNHEALTHY = "kaiwo.ai/gpu-unhealthy"
PATIENCE_S = 60.0
Object = dict[str, Any]

SELDOM: dict[str, dict[Right, str]] = {
    "kopt-webhook": {
        ("watch", "kai.scheduler", "configs"): "only in a cluster with KAI",
        ("watch", "kueue.x-k8s.io", "resourceflavors"): "only in a cluster with Kueue",
        ("get", "", "namespaces"): "only for a namespace that is younger than the watch's news of it",
        ("get", "", "pods"): "only for the pod of a claim for a MIG instance that is cut on demand",
        ("update", "", "secrets"): "only when the certificate is rotated, after 60 days",
        ("get", "resource.k8s.io", "deviceclasses"): "only for a class that is younger than the watch's news of it",
        ("get", "kaiwo.ai", "featurerollouts"): "only when an alarm switches a feature off",
        ("patch", "kaiwo.ai", "featurerollouts"): "only when an alarm switches a feature off",
        ("create", "events.k8s.io", "events"): "only for a workload that is given a share of a GPU",
        ("patch", "events.k8s.io", "events"): "only for an event that is repeated for a minute",
    }
    | {
        ("get", group, "aimservices"): "only for an InferenceService that an AIMService owns"
        for group in ("aim.eai.amd.com", "aim.silogen.ai")
    }
    | {
        (verb, "resource.k8s.io", "resourceclaimtemplates"): "only for a share of a GPU by a claim"
        for verb in ("create", "patch", "delete")
    },
    "kopt-extender": {
        ("get", "", "pods"): "only for a pod whose Binding was not seen within 30 s",
        ("patch", "", "pods"): "only for a refused pod that has room again by what no other object shows the scheduler",
        ("patch", "events.k8s.io", "events"): "only for an event that is repeated for a minute",
        ("get", "kaiwo.ai", "featurerollouts"): "only when an alarm switches a feature off",
        ("patch", "kaiwo.ai", "featurerollouts"): "only when an alarm switches a feature off",
    },
    "kopt-off": {
        ("get", "", "pods"): "only after a conflict",
        ("patch", "", "pods/resize"): "only where a change of CPU or memory is open",
        ("get", "", "nodes"): "only after a conflict",
        ("get", "kueue.x-k8s.io", "localqueues"): "only after a conflict",
        ("patch", "kaiwo.ai", "stageddata"): "only where data was staged",
        ("get", "apps", "daemonsets"): "only where there are agents",
        ("delete", "apps", "daemonsets"): "only where there are agents",
        ("delete", "resource.k8s.io", "devicetaintrules"): "only where single GPUs are kept free",
    }
    | {("get", resource.group, resource.plural): "only after a conflict" for resource in HOLDABLE}
    | {
        (verb, resource.group, resource.plural): "only where GPUs were lent"
        for resource in (*QUEUES, VOLCANO_JOBS)
        for verb in ("get", "list", "patch")
    }
    | {("create", "bus.volcano.sh", "commands"): "only where GPUs were lent to Volcano's own Jobs"}
    | {
        (verb, resource.group, resource.plural): "only where KaiwoQueues were applied"
        for resource in (kind for kinds in KINDS.values() for kind in kinds)
        for verb in ("list", "patch", "delete")
    }
    | {("list", "scheduling.run.ai", "podgroups"): "only in a cluster with KAI"},
}
"""Rights that the scenario need not use, by account, each with when they are."""


@dataclass(frozen=True)
class Request:
    """One request of the audit log."""

    right: Right
    name: str
    code: int


class Scenario:
    """The chart installed, and its components started by hand in place of a kubelet."""

    def __init__(self, plane: ControlPlane, rendered: list[Object]) -> None:
        self.plane, self.api, self.rendered = plane, plane.api, rendered
        self.started = datetime.now(UTC)
        self._servers: list[Server] = []

    def arguments(self, deployment: str) -> list[str]:
        """A Deployment's arguments, without those that say where to listen."""
        (found,) = [
            one for one in self.rendered if (one["kind"], one["metadata"]["name"]) == ("Deployment", deployment)
        ]
        arguments = found["spec"]["template"]["spec"]["containers"][0]["args"]
        local = ("--listen", "--probes", "--host", "--port", "--drain", "--probe-port", "--tls")
        return [one.replace("$(POD_NAMESPACE)", NAMESPACE) for one in arguments if not one.startswith(local)]

    def start(self, account: str, *arguments: str) -> Server:
        """``kopt`` with the token of a service account of the chart."""
        env = {
            "KUBECONFIG": str(self.plane.kubeconfig_for(account, NAMESPACE)),
            "POD_NAME": f"{account}-0",
            "POD_NAMESPACE": NAMESPACE,
        }
        return self._start_server(f"{account}-{free_port()}", [KOPT, *arguments], env)

    def _start_server(self, name: str, command: list[str | Path], env: dict[str, str] | None = None) -> Server:
        self._servers.append(self.plane.start_server(name, command, env))
        return self._servers[-1]

    def end(self) -> None:
        """Nothing runs any more."""
        for server in self._servers:
            server.kill()

    def webhook(self) -> Server:
        port, probes = free_port(), free_port()
        server = self.start(
            "kopt-webhook",
            *self.arguments("kopt-webhook"),
            f"--listen=127.0.0.1:{port}",
            f"--probes={probes}",
            f"--url=https://127.0.0.1:{port}",
            "--drain=0",
        )
        server.wait_until(lambda: answers(f"http://127.0.0.1:{probes}/readyz"))
        return server

    def extender(self) -> tuple[Server, str]:
        port, probes = free_port(), free_port()
        server = self.start(
            "kopt-extender",
            *self.arguments("kopt-extender"),
            f"--port={port}",
            f"--probe-port={probes}",
            f"--tls={self.mounted('kopt-extender-tls')}",
        )
        server.wait_until(lambda: answers(f"http://127.0.0.1:{probes}/leads"))
        return server, f"https://127.0.0.1:{port}"

    def mounted(self, secret: str) -> Path:
        """A folder with what a Secret of the chart holds."""
        (found,) = [one for one in self.rendered if (one["kind"], one["metadata"]["name"]) == ("Secret", secret)]
        folder = self.plane.folder / secret
        folder.mkdir(exist_ok=True)
        for name, content in found["data"].items():
            (folder / name).write_bytes(base64.b64decode(content))
        return folder

    def scheduler(self, extender_url: str) -> Server:
        """The real kube-scheduler with the chart's configuration and account; only the extender's address differs."""
        (found,) = [one for one in self.rendered if one["kind"] == "ConfigMap"]
        configuration = yaml.safe_load(found["data"]["scheduler.yaml"])
        (entry,) = configuration["extenders"]
        entry["urlPrefix"] = extender_url
        caller = self.mounted("kopt-extender-caller")
        for name, file in entry["tlsConfig"].items():
            entry["tlsConfig"][name] = str(caller / Path(file).name)
        entry["tlsConfig"]["serverName"] = f"kopt-extender.{NAMESPACE}.svc"
        kubeconfig = self.plane.kubeconfig_for("kopt-scheduler", NAMESPACE)
        configuration["clientConnection"] = {"kubeconfig": str(kubeconfig)}
        path = self.plane.folder / "chart-scheduler.yaml"
        path.write_text(yaml.safe_dump(configuration))
        command: list[str | Path] = [
            binary("kube-scheduler"),
            f"--config={path}",
            f"--secure-port={free_port()}",
            "--bind-address=127.0.0.1",
            f"--authentication-kubeconfig={kubeconfig}",
            f"--authorization-kubeconfig={kubeconfig}",
        ]
        return self._start_server("chart-scheduler", command)

    def requests(self, account: str) -> list[Request]:
        """What an account asked for since the scenario began."""
        found = []
        for entry in self.plane.audit_entries(account):
            if entry["user"]["username"] != f"system:serviceaccount:{NAMESPACE}:{account}" or "objectRef" not in entry:
                continue
            if datetime.fromisoformat(entry["requestReceivedTimestamp"]) >= self.started:
                place = entry["objectRef"]
                resource = "/".join(filter(None, (place["resource"], place.get("subresource"))))
                right = (entry["verb"], place.get("apiGroup", ""), resource)
                found.append(Request(right, place.get("name", ""), entry.get("responseStatus", {}).get("code", 0)))
        return found

    def granted(self, account: str) -> set[Right]:
        """Every right that the chart's rules give an account."""
        subject = {"kind": "ServiceAccount", "name": account, "namespace": NAMESPACE}
        bindings = [one for one in self.rendered if subject in one.get("subjects", [])]
        roles = {(one["roleRef"]["kind"], one["roleRef"]["name"]) for one in bindings}
        return granted(one for one in self.rendered if (one["kind"], one["metadata"]["name"]) in roles)


def answers(url: str) -> bool:
    return httpx.get(url, trust_env=False).is_success


def gpu_pod(gpus: int, **spec: Any) -> Object:
    limits = {"nvidia.com/gpu": str(gpus)} if gpus else {}
    resources = {"limits": limits, "requests": {"cpu": "1", "memory": "1Gi"}}
    return {"restartPolicy": "Never", "containers": [{"name": "main", "image": "any", "resources": resources}], **spec}


def pod(name: str, gpus: int, labels: dict[str, str] | None = None, share: str = "") -> Object:
    """A pod for whole GPUs, or for a share of one that only the extender knows of."""
    annotations = {"kaiwo.ai/gpu-fraction": share} if share else {}
    meta = {"name": name, "namespace": SPACE, "labels": labels or {}, "annotations": annotations}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": gpu_pod(gpus, schedulerName="kopt-scheduler")}


def node(name: str) -> Object:
    amounts = {"cpu": "64", "memory": "512Gi", "pods": "110", "nvidia.com/gpu": "8"}
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "", "lastHeartbeatTime": None}
    status = {"capacity": amounts, "allocatable": amounts, "conditions": [ready]}
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "status": status}


VALUES: Object = {
    "mode": "enforce",
    "scheduler": {"deploy": True},
    "policy": {
        "spec": {
            "queues": {"default": "best-effort"},
            "schedulers": {
                "packing": {
                    "scheduler": "kopt-scheduler",
                    "maxGpus": 4,
                    "running": {"lease": {"namespace": NAMESPACE, "name": "kopt-scheduler"}},
                },
                "gang": {
                    "scheduler": "kai-scheduler",
                    "framework": "KAI",
                    "running": {"deployment": {"namespace": "kai-scheduler", "name": "scheduler"}},
                },
            },
        }
    },
}


@pytest.fixture(scope="module")
def scenario(
    control_plane: ControlPlane, charts: Any, install: Callable[..., None], uninstall: Callable[[], None]
) -> Iterator[Scenario]:
    """The chart in mode enforce, two GPU nodes, and the custom resources of the queueing systems and frameworks."""
    control_plane.install_crds("jobset", "lws", "kuberay", "training-operator", "trainer", "kserve", "kaiwo", "volcano")
    bases = build.manifests("kueue") / "config" / "components" / "crd" / "bases"
    kinds = ("clusterqueues", "localqueues", "workloads")
    control_plane.apply_crds([bases / f"kueue.x-k8s.io_{name}.yaml" for name in kinds])
    install(VALUES)
    api = control_plane.api
    api.namespace(SPACE, {"kaiwo.ai/managed": "true"})
    queue = {"apiVersion": "kueue.x-k8s.io/v1beta1", "kind": "LocalQueue"}
    api.apply(queue | {"metadata": {"name": "best-effort", "namespace": SPACE}, "spec": {"clusterQueue": "gpus"}})
    for name in ("gpu-0", "gpu-1"):
        api.create(node(name))
        api.patch("v1", "Node", name, {"status": node(name)["status"]}, namespace="", subresource="status")
        api.wait("v1", "Node", name, lambda found: not found["spec"].get("taints"), namespace="", timeout_s=PATIENCE_S)
    found = Scenario(control_plane, charts.render(VALUES))
    yield found
    found.end()
    uninstall()
    for name in ("gpu-0", "gpu-1"):
        api.delete("v1", "Node", name, "")


@pytest.fixture(scope="module")
def webhook_at_work(scenario: Scenario) -> Object:
    """The webhook runs and has patched a Job; the Job as it was stored."""
    scenario.webhook()
    found = wait_for(lambda: labelled(scenario), PATIENCE_S, "a Job gets its queue")
    for kind in ("ClusterTrainingRuntime", "TrainingRuntime"):
        runtime = {"apiGroup": "trainer.kubeflow.org", "kind": kind, "name": "absent"}
        job = {"apiVersion": "trainer.kubeflow.org/v1alpha1", "kind": "TrainJob", "spec": {"runtimeRef": runtime}}
        scenario.api.create(job | {"metadata": {"generateName": "fine-tune-", "namespace": SPACE}})
    for field in ("resourceClaimName", "resourceClaimTemplateName"):
        spec = gpu_pod(0, resourceClaims=[{"name": "gpu", field: "absent"}])
        meta = {"generateName": "claims-", "namespace": SPACE}
        scenario.api.create({"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}, dryRun="All")
    return found


def labelled(scenario: Scenario) -> Object | None:
    """A new Job, if it got a queue: configurations reach the API server with a delay."""
    template = {"spec": gpu_pod(8)}
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"generateName": "train-", "namespace": SPACE},
        "spec": {"suspend": True, "template": template},
    }
    stored = scenario.api.create(job)
    return stored if "kueue.x-k8s.io/queue-name" in stored["metadata"].get("labels", {}) else None


@pytest.fixture(scope="module")
def extender_at_work(scenario: Scenario) -> Object:
    """Extender and scheduler run and have bound a pod, refused another, and told the scheduler when there was room."""
    api = scenario.api
    workload = {
        "apiVersion": "kgwe.nvidia.io/v1",
        "kind": "GPUWorkload",
        "metadata": {"name": "llm", "namespace": SPACE},
    }
    api.create(workload | {"spec": {"gpuRequirements": {"count": 8, "topology": {"preference": "Any"}}}})
    server, url = scenario.extender()
    scenario.scheduler(url)
    # A pod that no webhook has seen is the extender's all the same.
    for name in ("first", "second"):
        api.create(pod(name, 8, {"kgwe.nvidia.io/workload": "llm"}))
        api.wait("v1", "Pod", name, bound, namespace=SPACE, timeout_s=PATIENCE_S)
    api.create(pod("third", 0, share="0.5"))
    wait_for(lambda: "third" in refused(scenario), PATIENCE_S, "the third pod is refused")
    api.delete("v1", "Pod", "first", SPACE, gracePeriodSeconds=0)
    api.wait("v1", "Pod", "third", bound, namespace=SPACE, timeout_s=PATIENCE_S)
    wait_for(lambda: api.get("kgwe.nvidia.io/v1", "GPUWorkload", "llm", SPACE).get("status"), PATIENCE_S, "a status")
    selection = {"metadata": {"name": "fleet"}, "spec": {"weights": {"utilisationHistory": 2}}}
    api.create({"apiVersion": "kaiwo.ai/v1alpha1", "kind": "NodeSelectionPolicy", **selection})
    policy = ("kaiwo.ai/v1alpha1", "NodeSelectionPolicy", "fleet", "")
    wait_for(lambda: api.get(*policy).get("status"), PATIENCE_S, "a status of the policy")
    server.stop()
    return api.get("v1", "Pod", "second", SPACE)


def bound(found: Object) -> bool:
    return bool(found["spec"].get("nodeName"))


def refused(scenario: Scenario) -> set[str]:
    pods = scenario.api.list("v1", "Pod", SPACE)
    return {
        one["metadata"]["name"]
        for one in pods
        for condition in one["status"].get("conditions", [])
        if condition["type"] == "PodScheduled" and "GPU placement" in condition.get("message", "")
    }


@pytest.fixture(scope="module")
def switched_off(scenario: Scenario, webhook_at_work: Object, extender_at_work: Object) -> Object:
    """``kopt off`` with its own account has run; its JSON answer."""
    api = scenario.api
    api.namespace(ELSEWHERE)
    held = {"namespace": ELSEWHERE, "labels": {"kaiwo.ai/held": "tests"}}
    queued = {"active": False, "podSets": [{"name": "main", "count": 1, "template": {"spec": gpu_pod(1)}}]}
    api.create(
        {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": "held", **held},
            "spec": {"suspend": True, "template": {"spec": gpu_pod(1, nodeSelector=NOWHERE)}},
        }
    )
    api.create(
        {
            "apiVersion": "kueue.x-k8s.io/v1beta1",
            "kind": "Workload",
            "metadata": {"name": "held", **held},
            "spec": queued,
        }
    )
    for resource in HOLDABLE:
        if resource.kind not in SPECS or resource.kind == "Job":
            continue
        served = resource.version if resource.kind != "MPIJob" else "v1"
        api.create(
            {
                "apiVersion": f"{resource.group}/{served}",
                "kind": resource.kind,
                "metadata": {"name": "held", **held},
                "spec": SPECS[resource.kind],
            }
        )
    gated = gpu_pod(1, schedulingGates=[{"name": "kaiwo.ai/staging"}], nodeSelector=NOWHERE)
    api.create({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "held", **held}, "spec": gated})
    taint = {"key": UNHEALTHY, "value": "XID_79", "effect": "NoSchedule"}
    api.patch("v1", "Node", "gpu-1", {"metadata": {"labels": {UNHEALTHY: "true"}}, "spec": {"taints": [taint]}}, "")
    condition = {"type": "GPUHealthy", "status": "False", "reason": "KoptHealthCondemned", "message": "XID 79"}
    conditions = api.get("v1", "Node", "gpu-1", "")["status"].get("conditions") or []
    api.patch("v1", "Node", "gpu-1", {"status": {"conditions": [*conditions, condition]}}, "", subresource="status")
    environment = {"KUBECONFIG": str(scenario.plane.kubeconfig_for("kopt-off", NAMESPACE)), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        [KOPT, "off", "-n", NAMESPACE, "-o", "json"],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
        timeout=180,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return dict(json.loads(done.stdout))


def test_the_webhook_gives_a_job_its_queue(webhook_at_work: Object) -> None:
    assert webhook_at_work["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "best-effort"


def test_the_extender_binds_a_pod_and_names_its_gpus(extender_at_work: Object) -> None:
    assert extender_at_work["spec"]["nodeName"] in ("gpu-0", "gpu-1")
    assert extender_at_work["metadata"]["annotations"]["kaiwo.ai/gpu-indices"] == "0,1,2,3,4,5,6,7"


def test_off_takes_everything_away_and_gives_back_what_was_held(scenario: Scenario, switched_off: Object) -> None:
    api = scenario.api
    assert switched_off["off"] is True
    for kind in ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"):
        assert api.find(ADMISSION, kind, "00-kaiwo-optimizer", "") is None
    for name in ("kopt-webhook", "kopt-extender"):
        assert api.get("apps/v1", "Deployment", name, NAMESPACE)["spec"]["replicas"] == 0
    assert api.get("batch/v1", "Job", "held", ELSEWHERE)["spec"]["suspend"] is False
    assert api.get("kueue.x-k8s.io/v1beta1", "Workload", "held", ELSEWHERE)["spec"]["active"] is True
    assert not api.get("v1", "Pod", "held", ELSEWHERE)["spec"].get("schedulingGates")
    node = api.get("v1", "Node", "gpu-1", "")
    assert UNHEALTHY not in node["metadata"].get("labels", {})
    assert UNHEALTHY not in {taint["key"] for taint in node["spec"].get("taints") or ()}
    assert "GPUHealthy" not in {item["type"] for item in node["status"].get("conditions") or ()}


@pytest.mark.parametrize("account", ["kopt-webhook", "kopt-extender", "kopt-scheduler", "kopt-off"])
def test_no_component_was_refused_anything(scenario: Scenario, switched_off: Object, account: str) -> None:
    requests = scenario.requests(account)
    assert requests
    assert [one for one in requests if one.code == 403] == []


@pytest.mark.parametrize("account", ["kopt-webhook", "kopt-extender", "kopt-off"])
def test_every_right_that_is_given_is_used_or_has_a_reason(
    scenario: Scenario, switched_off: Object, account: str
) -> None:
    used = {one.right for one in scenario.requests(account)}
    granted = scenario.granted(account)
    assert granted
    unused = granted - used
    assert unused - SELDOM[account].keys() == set(), "given and never used"
    assert SELDOM[account].keys() <= granted, "not given any more: take it off the list"


@pytest.mark.parametrize(("account", "gates"), [("kopt-extender", False), ("kopt-off", True)])
def test_an_account_changes_only_what_is_ours_of_a_pod(
    scenario: Scenario, switched_off: Object, account: str, gates: bool
) -> None:
    assert_changes_only_what_is_ours(scenario.plane, account, NAMESPACE, gates=gates)


def test_an_upgrade_turns_everything_on_again(
    scenario: Scenario, switched_off: Object, install: Callable[..., None]
) -> None:
    install(VALUES)
    for name in ("kopt-webhook", "kopt-extender"):
        assert scenario.api.get("apps/v1", "Deployment", name, NAMESPACE)["spec"]["replicas"] == 2
    found = scenario.api.get(ADMISSION, "MutatingWebhookConfiguration", "00-kaiwo-optimizer", "")
    assert "webhooks" not in found, "filled by the first replica that serves"
