"""The profiling Job that is made of a user's: the same program, on the same kind of GPU, without its side effects.

What it may not do, unless the user allows it (annotation ``kaiwo.ai/profiling-allow: secrets,writes``):

* ``secrets``: no Secret in environment or volumes, no variable that is named like a credential, no service account,
  nor the node's account at a cloud. Buckets, registries and trackers can then not be written to.
* ``writes``: every volume that outlives the pod is mounted read-only; options and variables that name an output folder
  point into the pod's own scratch space; experiment trackers work offline.

It has one pod with one GPU container, no sidecars, hooks or probes, the lowest priority, and a deadline. Of the user's
labels it has only those of queues, whose quota counts it too: no Service leads to it.
Pure: decoded manifests in and out.
"""

import copy
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Manifest = dict[str, Any]

ALLOW_ANNOTATION = "kaiwo.ai/profiling-allow"
PROFILING_LABEL = "kaiwo.ai/profiling"
"""On the profiling Job and its pod: the digest of the job type."""
AGENT_FOLDER = "/kopt"
SCRATCH = f"{AGENT_FOLDER}/outputs"
WORLD_SIZE = "KOPT_PROFILE_WORLD_SIZE"
AGENT_CONTAINER, RUN_CONTAINER = "kopt-agent", "dry-run"
_AGENT_VOLUME = "kopt-profiler"

# As an option, or as an override of a configuration: --output_dir=…, trainer.output_dir=….
_OUTPUT = re.compile(
    r"(-{1,2}|(\w+\.)*)(output([_-]?(dir|path|folder))?|out[_-]dir|save([_-](dir|path))?|(checkpoint|ckpt)s?[_-](dir|path)"
    r"|log(ging)?[_-](dir|path)|tensorboard[_-](dir|path)|results?[_-](dir|path))",
    re.IGNORECASE,
)
_NODES = re.compile(r"--(nnodes|num[_-]nodes|num[_-]machines)", re.IGNORECASE)
_RANK = re.compile(r"--(node[_-]rank|machine[_-]rank)", re.IGNORECASE)
_OUTPUT_VARIABLE = re.compile(
    r"(\w+_)?(OUTPUT|OUT|SAVE|CHECKPOINTS?|CKPT|LOG|LOGGING|TENSORBOARD|RESULTS?)_?(DIR|PATH|FOLDER)", re.IGNORECASE
)
_CREDENTIAL = re.compile(
    r"SECRET|TOKEN(?!S|IZER)|PASSWORD|PASSWD|CREDENTIAL|API_?KEY|ACCESS_KEY|PRIVATE_KEY|AUTH|(^|_)(DSN|SAS)(_|$)",
    re.IGNORECASE,
)
_ALONE = {"WORLD_SIZE": "1", "NNODES": "1", "PET_NNODES": "1", "NUM_NODES": "1", "RANK": "0", "NODE_RANK": "0",
          "PET_NODE_RANK": "0", "MASTER_ADDR": "127.0.0.1", "PET_MASTER_ADDR": "127.0.0.1"}  # fmt: skip
_OFFLINE = {"WANDB_MODE": "offline", "WANDB_DIR": SCRATCH, "MLFLOW_TRACKING_URI": f"file:{SCRATCH}/mlruns",
            "COMET_MODE": "disabled", "NEPTUNE_MODE": "offline", "CLEARML_OFFLINE_MODE": "1",
            "HF_HUB_DISABLE_TELEMETRY": "1"}  # fmt: skip
# The node's own account at a cloud, which every pod could use: what writes to buckets asks for it.
_NO_ACCOUNT = {"AWS_EC2_METADATA_DISABLED": "true", "NO_GCE_CHECK": "true", "GCE_METADATA_HOST": "127.0.0.1:9",
               "GCE_METADATA_IP": "127.0.0.1:9"}  # fmt: skip
_KEPT_IN_POD = ("nodeSelector", "tolerations", "affinity", "runtimeClassName", "imagePullSecrets", "securityContext",
                "schedulerName", "dnsPolicy", "dnsConfig", "hostAliases", "os")  # fmt: skip
_KEPT_IN_CONTAINER = ("image", "imagePullPolicy", "workingDir", "resources", "securityContext")
_KUEUE_LABEL = "kueue.x-k8s.io/queue-name"
_KAI_LABELS = ("kai.scheduler/queue", "kai.scheduler/node-pool", "runai/queue", "runai/node-pool")
_AGENT_RESOURCES = {"requests": {"cpu": "50m", "memory": "64Mi"}, "limits": {"memory": "256Mi"}}
_OWN_TO_POD = ("emptyDir", "ephemeral")


@dataclass(frozen=True)
class DryRunSettings:
    """How profiling Jobs are made. Times in seconds."""

    agent_image: str
    """Holds ``kopt``; its init container writes the profiler into the pod."""
    priority_class: str = ""
    """The lowest there is, and one that pre-empts nobody; empty for the cluster's default."""
    duration_s: float = 300.0
    start_s: float = 900.0
    """For waiting, pulling and loading: the Job's deadline is this and the duration."""
    interval_s: float = 0.5


@dataclass(frozen=True)
class Allowed:
    """What the user lets the dry run do."""

    secrets: bool = False
    writes: bool = False

    @classmethod
    def of(cls, annotations: Mapping[str, Any]) -> "Allowed":
        words = str(annotations.get(ALLOW_ANNOTATION, "")).replace(",", " ").split()
        return cls("secrets" in words, "writes" in words)


def profiling_job(
    job: Manifest, gpu_container: int, *, name: str, digest: str, settings: DryRunSettings, labels: Mapping[str, str],
    queue: str = "", processes: int = 1,
) -> Manifest:  # fmt: skip
    """The profiling Job for a user's Job, in its namespace, owned by it; ``labels`` come on top, ``queue`` is the
    user's Kueue queue, ``processes`` the world size of one pod."""
    metadata, template = job["metadata"], job["spec"]["template"]
    allowed = Allowed.of(metadata.get("annotations") or {})
    own = {**_queue_labels(metadata, template.get("metadata") or {}), **labels, PROFILING_LABEL: digest}
    queued = {_KUEUE_LABEL: queue} if queue else {}
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": metadata["name"], "uid": metadata["uid"]}
    indexed = {"completionMode": "Indexed"} if job["spec"].get("completionMode") == "Indexed" else {}
    return {
        "metadata": {"name": name, "namespace": metadata["namespace"], "labels": own | queued,
                     "ownerReferences": [owner]},
        "spec": {
            "parallelism": 1, "completions": 1, "backoffLimit": 0, **indexed,
            "activeDeadlineSeconds": round(settings.start_s + settings.duration_s),
            "template": {
                "metadata": {"labels": own},
                "spec": _pod(template["spec"], gpu_container, {"KOPT_JOB_TYPE": digest, WORLD_SIZE: str(processes)},
                             settings, allowed),
            },
        },
    }  # fmt: skip


def _queue_labels(*places: Manifest) -> dict[str, str]:
    """KAI's, which it reads from pods and their owners alike."""
    return {name: value for place in places for name, value in (place.get("labels") or {}).items()
            if name in _KAI_LABELS}  # fmt: skip


def _pod(
    spec: Manifest, gpu_container: int, told: Mapping[str, str], settings: DryRunSettings, allowed: Allowed
) -> Manifest:
    volumes = [_volume(one, allowed) for one in spec.get("volumes") or ()]
    writable = {one["name"] for one in volumes if any(kind in one for kind in _OWN_TO_POD)}
    setup = [one for one in spec.get("initContainers") or () if one.get("restartPolicy") != "Always"]
    own = spec["containers"][gpu_container]
    found: Manifest = {key: copy.deepcopy(spec[key]) for key in _KEPT_IN_POD if key in spec}
    found |= {
        "restartPolicy": "Never", "automountServiceAccountToken": False, "enableServiceLinks": False,
        "terminationGracePeriodSeconds": 30,
        "volumes": [*volumes, {"name": _AGENT_VOLUME, "emptyDir": {}}],
        "initContainers": [_agent(settings, own), *(_set_up(one, writable, allowed) for one in setup)],
        "containers": [_run(own, writable, told, settings, allowed)],
    }  # fmt: skip
    if settings.priority_class:
        found["priorityClassName"] = settings.priority_class
    if allowed.secrets and spec.get("serviceAccountName"):
        found |= {"serviceAccountName": spec["serviceAccountName"], "automountServiceAccountToken": True}
    return found


def _agent(settings: DryRunSettings, beside: Manifest) -> Manifest:
    """It asks for no kind of resource that the user's container does not ask for: a queue may have no quota of it."""
    asked = {name for amounts in (beside.get("resources") or {}).values() for name in amounts}
    resources = {part: {name: amount for name, amount in amounts.items() if name in asked}
                 for part, amounts in _AGENT_RESOURCES.items()}  # fmt: skip
    return {
        "name": AGENT_CONTAINER, "image": settings.agent_image, "args": ["agent", "install", AGENT_FOLDER],
        "volumeMounts": [{"name": _AGENT_VOLUME, "mountPath": AGENT_FOLDER}],
        "resources": resources,
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]},
                            "runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
    }  # fmt: skip


def _set_up(container: Manifest, writable: set[str], allowed: Allowed) -> Manifest:
    found = {key: copy.deepcopy(container[key]) for key in (*_KEPT_IN_CONTAINER, "command", "args") if key in container}
    return found | {"name": container["name"], "volumeMounts": _mounts(container, writable, allowed),
                    **_environment(container, allowed)}  # fmt: skip


def _run(container: Manifest, writable: set[str], told: Mapping[str, str], settings: DryRunSettings,
         allowed: Allowed) -> Manifest:  # fmt: skip
    user = [*(container.get("command") or ()), *(container.get("args") or ())]
    options = [f"--duration={settings.duration_s:g}", f"--interval={settings.interval_s:g}",
               "--result=/dev/termination-log"]  # fmt: skip
    found: Manifest = {key: copy.deepcopy(container[key]) for key in _KEPT_IN_CONTAINER if key in container}
    environment = _environment(container, allowed)
    own = dict(told) | ({} if allowed.writes else _OFFLINE) | ({} if allowed.secrets else _NO_ACCOUNT)
    known = {one["name"]: one for one in environment.get("env", ())}
    known |= {name: {"name": name, "value": value} for name, value in _ALONE.items() if name in known}
    known |= {name: {"name": name, "value": value} for name, value in own.items()}
    return found | environment | {
        "name": RUN_CONTAINER, "command": [f"{AGENT_FOLDER}/profile", *options, "--", *redirected(user, allowed)],
        "env": list(known.values()),
        "volumeMounts": [*_mounts(container, writable, allowed), {"name": _AGENT_VOLUME, "mountPath": AGENT_FOLDER}],
        "terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File",
    }  # fmt: skip


def redirected(parts: Sequence[str], allowed: Allowed) -> list[str]:
    """The user's command for one node, with its outputs in the scratch space."""
    found: list[str] = []
    after = ""
    for part in parts:
        name, equals, _ = part.partition("=")
        replacement = ""
        if _NODES.fullmatch(name):
            replacement = "1"
        elif _RANK.fullmatch(name):
            replacement = "0"
        elif _OUTPUT.fullmatch(name) and (equals or part.startswith("-")) and not allowed.writes:
            replacement = f"{SCRATCH}/{name.strip('-')}"
        if after and not part.startswith("-"):
            found.append(after)
            after = ""
            continue
        after = replacement if replacement and not equals else ""
        found.append(f"{name}={replacement}" if replacement and equals else part)
    return found


def _environment(container: Manifest, allowed: Allowed) -> Manifest:
    """Entries in their order, as later ones may refer to earlier ones."""
    env = [_own_output(one, allowed) for one in container.get("env") or () if allowed.secrets or not _is_secret(one)]
    sources = [
        copy.deepcopy(one) for one in container.get("envFrom") or () if allowed.secrets or "secretRef" not in one
    ]
    return {"env": env} | ({"envFrom": sources} if sources else {})


def _own_output(entry: Manifest, allowed: Allowed) -> Manifest:
    """The entry, in the scratch space if it names a folder for outputs."""
    if allowed.writes or not _OUTPUT_VARIABLE.fullmatch(entry["name"]) or "/" not in str(entry.get("value", "")):
        return copy.deepcopy(entry)
    return {"name": entry["name"], "value": f"{SCRATCH}/{entry['name']}"}


def _is_secret(entry: Manifest) -> bool:
    return "secretKeyRef" in (entry.get("valueFrom") or {}) or bool(_CREDENTIAL.search(entry["name"]))


def _volume(volume: Manifest, allowed: Allowed) -> Manifest:
    """A volume that gives nothing away and keeps nothing: an empty folder stands for what may not be there."""
    name = {"name": volume["name"]}
    if "projected" in volume:
        sources = (volume["projected"] or {}).get("sources") or ()
        kept = [one for one in sources if allowed.secrets or one.keys() <= {"configMap", "downwardAPI"}]
        return name | {"projected": {**volume["projected"], "sources": kept}}
    if "persistentVolumeClaim" in volume:
        claim = dict(volume["persistentVolumeClaim"])
        return name | {"persistentVolumeClaim": claim if allowed.writes else claim | {"readOnly": True}}
    if "nfs" in volume:
        return name | {"nfs": dict(volume["nfs"]) | ({} if allowed.writes else {"readOnly": True})}
    if any(kind in volume for kind in (*_OWN_TO_POD, "configMap", "downwardAPI", "image", "hostPath")):
        return copy.deepcopy(volume)
    return copy.deepcopy(volume) if allowed.secrets and allowed.writes else name | {"emptyDir": {}}


def _mounts(container: Manifest, writable: set[str], allowed: Allowed) -> list[Manifest]:
    found = [copy.deepcopy(one) for one in container.get("volumeMounts") or ()]
    for mount in found:
        if mount["name"] not in writable and not allowed.writes:
            mount["readOnly"] = True
            mount.pop("mountPropagation", None)
    return found
