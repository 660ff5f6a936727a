"""The profiling Job derived from a user's Job: the same program, on the same kind of GPU, without its side effects.

Not available unless the user allows it (annotation ``kaiwo.ai/profiling-allow: secrets,writes``):

* ``secrets``: Secrets in environment or volumes, variables that are named like a credential, the service account, and
  the node's cloud identity. Without them it cannot write to buckets, registries and trackers.
* ``writes``: every volume that outlives the pod is mounted read-only; options and variables that name an output folder
  point into the pod's own scratch space; experiment trackers work offline.

It is never privileged, whatever the user's Job is, and may only mount the host paths that the administrator names. It
has one pod with one GPU container, no sidecars, hooks or probes, the lowest priority, and a deadline. Of the user's
labels it only keeps those of queues, whose quota counts it too, so no Service selects it. An admission policy of the
chart (``kopt-sizing-fence``) enforces the same in the API server.
Pure: decoded manifests in and out.
"""

import copy
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
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
_ALONE = {
    "WORLD_SIZE": "1",
    "NNODES": "1",
    "PET_NNODES": "1",
    "NUM_NODES": "1",
    "RANK": "0",
    "NODE_RANK": "0",
    "PET_NODE_RANK": "0",
    "MASTER_ADDR": "127.0.0.1",
    "PET_MASTER_ADDR": "127.0.0.1",
}
_OFFLINE = {
    "WANDB_MODE": "offline",
    "WANDB_DIR": SCRATCH,
    "MLFLOW_TRACKING_URI": f"file:{SCRATCH}/mlruns",
    "COMET_MODE": "disabled",
    "NEPTUNE_MODE": "offline",
    "CLEARML_OFFLINE_MODE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
}
# The node's cloud identity, which every pod could use to write to buckets.
_NO_ACCOUNT = {
    "AWS_EC2_METADATA_DISABLED": "true",
    "NO_GCE_CHECK": "true",
    "GCE_METADATA_HOST": "127.0.0.1:9",
    "GCE_METADATA_IP": "127.0.0.1:9",
}
_KEPT_IN_POD = (
    "nodeSelector",
    "tolerations",
    "affinity",
    "runtimeClassName",
    "imagePullSecrets",
    "securityContext",
    "schedulerName",
    "dnsPolicy",
    "dnsConfig",
    "hostAliases",
    "os",
)
_KEPT_IN_CONTAINER = ("image", "imagePullPolicy", "workingDir", "resources", "securityContext")
_KUEUE_LABEL = "kueue.x-k8s.io/queue-name"
_KAI_LABELS = ("kai.scheduler/queue", "kai.scheduler/node-pool", "runai/queue", "runai/node-pool")
_AGENT_RESOURCES = {"requests": {"cpu": "50m", "memory": "64Mi"}, "limits": {"memory": "256Mi"}}
_OWN_TO_POD = ("emptyDir", "ephemeral")
_KEPT_IN_SECURITY = (
    "runAsUser",
    "runAsGroup",
    "runAsNonRoot",
    "readOnlyRootFilesystem",
    "allowPrivilegeEscalation",
    "fsGroup",
    "fsGroupChangePolicy",
    "supplementalGroups",
    "supplementalGroupsPolicy",
    "seccompProfile",
    "capabilities",
)
_USUAL_CAPABILITIES = frozenset(
    {
        "AUDIT_WRITE",
        "CHOWN",
        "DAC_OVERRIDE",
        "FOWNER",
        "FSETID",
        "KILL",
        "MKNOD",
        "NET_BIND_SERVICE",
        "SETFCAP",
        "SETGID",
        "SETPCAP",
        "SETUID",
        "SYS_CHROOT",
    }
)
"""Those of the baseline pod security standard."""


@dataclass(frozen=True)
class DryRunSettings:
    """How profiling Jobs are made. Times in seconds."""

    agent_image: str
    """Contains ``kopt``; its init container writes the profiler into the pod."""
    priority_class: str = ""
    """Should be the lowest one and non-preempting; empty for the cluster's default."""
    duration_s: float = 300.0
    start_s: float = 900.0
    """For waiting, pulling and loading: the Job's deadline is this plus the duration."""
    interval_s: float = 0.5
    allow_secrets: bool = True
    """Whether users may give dry runs access to their Jobs' Secrets and service account."""
    host_paths: tuple[str, ...] | None = None
    """Host paths of the Job that a dry run may read; None for all."""

    def may_read(self, path: str) -> bool:
        """Whether a host path may be mounted."""
        if self.host_paths is None:
            return True
        below = any(path == host_path or path.startswith(f"{host_path}/") for host_path in self.host_paths)
        return below and ".." not in path


@dataclass(frozen=True)
class Allowed:
    """What the user allows the dry run to do."""

    secrets: bool = False
    writes: bool = False

    @classmethod
    def of(cls, annotations: Mapping[str, Any]) -> "Allowed":
        permissions = str(annotations.get(ALLOW_ANNOTATION, "")).replace(",", " ").split()
        return cls("secrets" in permissions, "writes" in permissions)


def profiling_job(
    job: Manifest,
    gpu_container: int,
    *,
    name: str,
    digest: str,
    settings: DryRunSettings,
    labels: Mapping[str, str],
    queue: str = "",
    processes: int = 1,
) -> Manifest:
    """The profiling Job for a user's Job, in its namespace, owned by it; ``labels`` come on top, ``queue`` is the
    user's Kueue queue, ``processes`` the world size of one pod."""
    metadata, template = job["metadata"], job["spec"]["template"]
    allowed = Allowed.of(metadata.get("annotations") or {})
    allowed = replace(allowed, secrets=allowed.secrets and settings.allow_secrets)
    own = {**_queue_labels(metadata, template.get("metadata") or {}), **labels, PROFILING_LABEL: digest}
    queued = {_KUEUE_LABEL: queue} if queue else {}
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": metadata["name"], "uid": metadata["uid"]}
    indexed = {"completionMode": "Indexed"} if job["spec"].get("completionMode") == "Indexed" else {}
    return {
        "metadata": {
            "name": name,
            "namespace": metadata["namespace"],
            "labels": own | queued,
            "ownerReferences": [owner],
        },
        "spec": {
            "parallelism": 1,
            "completions": 1,
            "backoffLimit": 0,
            **indexed,
            "activeDeadlineSeconds": round(settings.start_s + settings.duration_s),
            "template": {
                "metadata": {"labels": own},
                "spec": _pod(
                    template["spec"],
                    gpu_container,
                    {"KOPT_JOB_TYPE": digest, WORLD_SIZE: str(processes)},
                    settings,
                    allowed,
                ),
            },
        },
    }


def profiled_command(profiling: Manifest) -> tuple[str, ...]:
    """What a Job that ``profiling_job`` made runs below the profiler; empty for any other."""
    containers = profiling["spec"]["template"]["spec"]["containers"]
    command = next(
        (container.get("command") or () for container in containers if container["name"] == RUN_CONTAINER), ()
    )
    return tuple(command[command.index("--") + 1 :]) if "--" in command else ()


def _queue_labels(*parts: Manifest) -> dict[str, str]:
    """KAI's queue labels, which it reads both from pods and from their owners."""
    return {name: value for part in parts for name, value in (part.get("labels") or {}).items() if name in _KAI_LABELS}


def _pod(
    spec: Manifest, gpu_container: int, variables: Mapping[str, str], settings: DryRunSettings, allowed: Allowed
) -> Manifest:
    volumes = [_volume(volume, settings, allowed) for volume in spec.get("volumes") or ()]
    writable = {volume["name"] for volume in volumes if _is_writable(volume, settings, allowed)}
    setup = [
        init_container
        for init_container in spec.get("initContainers") or ()
        if init_container.get("restartPolicy") != "Always"
    ]
    own = spec["containers"][gpu_container]
    result: Manifest = _harmless({key: copy.deepcopy(spec[key]) for key in _KEPT_IN_POD if key in spec})
    result |= {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": 30,
        "volumes": [*volumes, {"name": _AGENT_VOLUME, "emptyDir": {}}],
        "initContainers": [_agent(settings, own), *(_set_up(item, writable, allowed) for item in setup)],
        "containers": [_run(own, writable, variables, settings, allowed)],
    }
    if settings.priority_class:
        result["priorityClassName"] = settings.priority_class
    if allowed.secrets and spec.get("serviceAccountName"):
        result |= {"serviceAccountName": spec["serviceAccountName"], "automountServiceAccountToken": True}
    return result


def _agent(settings: DryRunSettings, beside: Manifest) -> Manifest:
    """It requests only kinds of resources that the user's container requests: a queue may have no quota for others."""
    requested = {name for amounts in (beside.get("resources") or {}).values() for name in amounts}
    resources = {
        part: {name: amount for name, amount in amounts.items() if name in requested}
        for part, amounts in _AGENT_RESOURCES.items()
    }
    return {
        "name": AGENT_CONTAINER,
        "image": settings.agent_image,
        "args": ["agent", "install", AGENT_FOLDER],
        "volumeMounts": [{"name": _AGENT_VOLUME, "mountPath": AGENT_FOLDER}],
        "resources": resources,
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "runAsNonRoot": True,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
    }


def _set_up(container: Manifest, writable: set[str], allowed: Allowed) -> Manifest:
    kept = (*_KEPT_IN_CONTAINER, "command", "args")
    result = _harmless({key: copy.deepcopy(container[key]) for key in kept if key in container})
    return result | {
        "name": container["name"],
        "volumeMounts": _mounts(container, writable),
        **_environment(container, allowed),
    }


def _run(
    container: Manifest, writable: set[str], variables: Mapping[str, str], settings: DryRunSettings, allowed: Allowed
) -> Manifest:
    user = [*(container.get("command") or ()), *(container.get("args") or ())]
    options = [
        f"--duration={settings.duration_s:g}",
        f"--interval={settings.interval_s:g}",
        "--result=/dev/termination-log",
    ]
    result = _harmless({key: copy.deepcopy(container[key]) for key in _KEPT_IN_CONTAINER if key in container})
    environment = _environment(container, allowed)
    own = dict(variables) | ({} if allowed.writes else _OFFLINE) | ({} if allowed.secrets else _NO_ACCOUNT)
    variables_by_name = {item["name"]: item for item in environment.get("env", ())}
    variables_by_name |= {
        name: {"name": name, "value": value} for name, value in _ALONE.items() if name in variables_by_name
    }
    variables_by_name |= {name: {"name": name, "value": value} for name, value in own.items()}
    return (
        result
        | environment
        | {
            "name": RUN_CONTAINER,
            "command": [f"{AGENT_FOLDER}/profile", *options, "--", *redirected(user, allowed)],
            "env": list(variables_by_name.values()),
            "volumeMounts": [*_mounts(container, writable), {"name": _AGENT_VOLUME, "mountPath": AGENT_FOLDER}],
            "terminationMessagePath": "/dev/termination-log",
            "terminationMessagePolicy": "File",
        }
    )


def redirected(parts: Sequence[str], allowed: Allowed) -> list[str]:
    """The user's command for one node, with its outputs in the scratch space."""
    result: list[str] = []
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
            result.append(after)
            after = ""
            continue
        after = replacement if replacement and not equals else ""
        result.append(f"{name}={replacement}" if replacement and equals else part)
    return result


def _environment(container: Manifest, allowed: Allowed) -> Manifest:
    """Entries in their original order, as later ones may refer to earlier ones."""
    env = [_own_output(item, allowed) for item in container.get("env") or () if allowed.secrets or not _is_secret(item)]
    sources = [
        copy.deepcopy(item) for item in container.get("envFrom") or () if allowed.secrets or "secretRef" not in item
    ]
    return {"env": env} | ({"envFrom": sources} if sources else {})


def _own_output(entry: Manifest, allowed: Allowed) -> Manifest:
    """The entry, redirected into the scratch space if it names an output folder."""
    if allowed.writes or not _OUTPUT_VARIABLE.fullmatch(entry["name"]) or "/" not in str(entry.get("value", "")):
        return copy.deepcopy(entry)
    return {"name": entry["name"], "value": f"{SCRATCH}/{entry['name']}"}


def _is_secret(entry: Manifest) -> bool:
    return "secretKeyRef" in (entry.get("valueFrom") or {}) or bool(_CREDENTIAL.search(entry["name"]))


def _harmless(part: Manifest) -> Manifest:
    """A pod or container spec without what its ``securityContext`` allows beyond the baseline standard."""
    context = part.get("securityContext")
    if not isinstance(context, dict):
        return part
    kept = {key: value for key, value in context.items() if key in _KEPT_IN_SECURITY}
    if (kept.get("seccompProfile") or {}).get("type") == "Unconfined":
        del kept["seccompProfile"]
    if added := (kept.get("capabilities") or {}).get("add"):
        usual = [item for item in added if item in _USUAL_CAPABILITIES]
        kept["capabilities"] = {**kept["capabilities"], "add": usual}
    return {**part, "securityContext": kept}


def _volume(volume: Manifest, settings: DryRunSettings, allowed: Allowed) -> Manifest:
    """A volume without secrets or persistent writes: an empty folder replaces what is not allowed."""
    name = {"name": volume["name"]}
    if "hostPath" in volume and not settings.may_read(str(volume["hostPath"].get("path", ""))):
        return name | {"emptyDir": {}}
    if "projected" in volume:
        sources = (volume["projected"] or {}).get("sources") or ()
        kept = [source for source in sources if allowed.secrets or source.keys() <= {"configMap", "downwardAPI"}]
        return name | {"projected": {**volume["projected"], "sources": kept}}
    if "persistentVolumeClaim" in volume:
        claim = dict(volume["persistentVolumeClaim"])
        return name | {"persistentVolumeClaim": claim if allowed.writes else claim | {"readOnly": True}}
    if "nfs" in volume:
        return name | {"nfs": dict(volume["nfs"]) | ({} if allowed.writes else {"readOnly": True})}
    if any(kind in volume for kind in (*_OWN_TO_POD, "configMap", "downwardAPI", "image", "hostPath")):
        return copy.deepcopy(volume)
    return copy.deepcopy(volume) if allowed.secrets and allowed.writes else name | {"emptyDir": {}}


def _is_writable(volume: Manifest, settings: DryRunSettings, allowed: Allowed) -> bool:
    """Whether a mount may be writable: the pod's own volumes, and persistent ones if the user allows writes; host
    paths never where the administrator names them."""
    if any(kind in volume for kind in _OWN_TO_POD):
        return True
    return allowed.writes and not ("hostPath" in volume and settings.host_paths is not None)


def _mounts(container: Manifest, writable: set[str]) -> list[Manifest]:
    mounts = [copy.deepcopy(volume_mount) for volume_mount in container.get("volumeMounts") or ()]
    for mount in mounts:
        if mount["name"] not in writable:
            mount["readOnly"] = True
            mount.pop("mountPropagation", None)
    return mounts
