"""Entrypoints of pods, of the controllers that make pods, and of Dockerfiles."""

import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from kopt.core.reason import Reason
from kopt.formats.entrypoint.entrypoint import Entrypoint, EntrypointError
from kopt.formats.entrypoint.launchers import Files, what_runs
from kopt.formats.entrypoint.shell import MAX_TEXT_CHARACTERS, check
from kopt.formats.entrypoint.variables import by_variables

_GPU_RESOURCES = ("nvidia.com/gpu", "amd.com/gpu", "gpu.intel.com/i915")
_REFERENCE = re.compile(r"\$\(([A-Za-z_][\w.-]*)\)")
_REPLICA_SPECS = ("pytorchReplicaSpecs", "tfReplicaSpecs", "mpiReplicaSpecs", "paddleReplicaSpecs", "xgbReplicaSpecs")
_MAX_DEPTH = 12
_MAX_FILLED_CHARACTERS = 4 << 20
"""Of all words, and of all variables, once references are filled in; a pod is at most 1.5 MiB in the cluster."""


def pod_entrypoint(manifest: Mapping[str, Any], files: Files) -> Entrypoint:
    """What the GPU container of a decoded manifest runs: a Pod, or any kind that holds a pod template.

    Raises:
        EntrypointError: no container, no command (the image's own is unknown here), or one that cannot be read.
    """
    entry = _member(manifest, "spec").get("entrypoint")
    if isinstance(entry, str) and manifest.get("kind") in ("RayJob", "KaiwoJob"):
        return what_runs(entry, files)
    pods = list(_pods(manifest, 0, 1))
    if not pods:
        raise EntrypointError(f"{manifest.get('kind', 'the manifest')} holds no pod template; give a Pod or a Job")
    spec, _ = next((pod for pod in pods if any(_gpus(item) for item in _containers(pod[0]))), pods[0])
    containers = _containers(spec)
    if not containers:
        raise EntrypointError("the pod has no containers; give its command")
    container = max(containers, key=_gpus)
    return _container_entrypoint(container, sum(replicas for _, replicas in pods), files)


def _container_entrypoint(container: Mapping[str, Any], replicas: int, files: Files) -> Entrypoint:
    env, unknown = _environment(container)
    arguments = _filled_arguments((*_strings(container, "command"), *_strings(container, "args")), env)
    if not arguments:
        image = container.get("image", "its image")
        raise EntrypointError(f"the container gives no command, so {image} decides what runs; give command or args")
    if not _strings(container, "command"):
        unknown.append(Reason("IMAGE_ENTRYPOINT", "the image's entrypoint comes before the args and is not known"))
    entrypoint = what_runs(arguments, files)
    entrypoint = by_variables(entrypoint, {**env, **entrypoint.env})
    gpus = _gpus(container)
    if entrypoint.world_size is None and gpus and entrypoint.launcher:
        unknown.append(Reason("GPUS", f"one process for each of {gpus} GPUs in {replicas} pods", {"gpus": gpus}))
        nodes = max(entrypoint.nodes, replicas)
        entrypoint = replace(entrypoint, world_size=gpus * nodes, nodes=nodes, default_processes=True)
        entrypoint = replace(
            entrypoint, unknown=tuple(reason for reason in entrypoint.unknown if reason.code != "WORLD_SIZE")
        )
    return replace(entrypoint, env={**env, **entrypoint.env}, unknown=(*entrypoint.unknown, *unknown))


def _member(mapping: Any, name: str) -> Mapping[str, Any]:
    result = mapping.get(name) if isinstance(mapping, Mapping) else None
    return result if isinstance(result, Mapping) else {}


def _pods(manifest: Mapping[str, Any], depth: int, replicas: int) -> Iterator[tuple[Mapping[str, Any], int]]:
    """Pod specs and how many of each: templates may lie in templates (CronJob, JobSet)."""
    if depth > _MAX_DEPTH:
        return
    spec = _member(manifest, "spec")
    if isinstance(spec.get("containers"), Sequence):
        yield spec, replicas
        return
    for name in ("template", "jobTemplate", "podTemplate"):
        if _member(spec, name):
            yield from _pods(_member(spec, name), depth + 1, replicas * _number(spec.get("parallelism"), 1))
    for name in _REPLICA_SPECS:
        for part in _member(spec, name).values():
            if _member(part, "template"):
                yield from _pods(_member(part, "template"), depth + 1, _number(part.get("replicas"), 1))
    jobs = spec.get("replicatedJobs")
    for job in jobs if isinstance(jobs, Sequence) and not isinstance(jobs, str) else ():
        if _member(job, "template"):
            yield from _pods(_member(job, "template"), depth + 1, _number(job.get("replicas"), 1))


def _number(value: Any, default: int) -> int:
    return value if isinstance(value, int) and 0 < value < 1 << 20 else default


def _containers(spec: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    result = spec.get("containers")
    return [item for item in result if isinstance(item, Mapping)] if isinstance(result, Sequence) else []


def _gpus(container: Mapping[str, Any]) -> int:
    for part in ("limits", "requests"):
        amounts = _member(_member(container, "resources"), part)
        for name, value in amounts.items():
            text = str(value)
            if (
                (name in _GPU_RESOURCES or str(name).startswith("nvidia.com/mig-"))
                and text.isascii()
                and text.isdigit()
            ):
                return int(text[:6])
    return 0


def _strings(container: Mapping[str, Any], name: str) -> list[str]:
    result = container.get(name)
    if isinstance(result, str):
        raise EntrypointError(f'{name} must be a list of words, not one text; write it as ["sh", "-c", …]')
    return [str(word) for word in result] if isinstance(result, Sequence) else []


def _environment(container: Mapping[str, Any]) -> tuple[dict[str, str], list[Reason]]:
    env: dict[str, str] = {}
    unknown, size = [], 0
    variables = container.get("env")
    for entry in variables if isinstance(variables, Sequence) and not isinstance(variables, str) else ():
        if not isinstance(entry, Mapping) or not isinstance(entry.get("name"), str):
            continue
        if "valueFrom" in entry:
            unknown.append(Reason("FROM_CLUSTER", f"the cluster sets the variable {entry['name']}"))
        else:
            value = _filled(str(entry.get("value", "")), env)
            size += len(value)
            if size > _MAX_FILLED_CHARACTERS:
                raise EntrypointError("the container's variables are longer than any pod's; give the command alone")
            env[entry["name"]] = value
    return env, unknown


def _filled_arguments(arguments: Sequence[str], env: Mapping[str, str]) -> list[str]:
    """Short words may each stand for a long variable: their sum is bounded as well."""
    result, size = [], 0
    for word in arguments:
        result.append(_filled(word, env))
        size += len(result[-1])
        if size > _MAX_FILLED_CHARACTERS:
            raise EntrypointError("the container's command is longer than any pod's; give a shorter one")
    return result


def _filled(text: str, env: Mapping[str, str]) -> str:
    """Kubernetes fills $(NAME) in before any shell sees it, and leaves unknown names as they are."""
    if len(text) + sum(len(env.get(match[1], "")) for match in _REFERENCE.finditer(text)) > MAX_TEXT_CHARACTERS:
        raise EntrypointError("the container's command or variables are longer than any command line")
    return _REFERENCE.sub(lambda match: env.get(match[1], match[0]), text)


def dockerfile_entrypoint(text: str, files: Files) -> Entrypoint:
    """What a container of a Dockerfile's last stage runs: ENTRYPOINT followed by CMD, with its ENV.

    Raises:
        EntrypointError: neither of them in the last stage.
    """
    entrypoint: Sequence[str] | str = ()
    command: Sequence[str] | str = ()
    env: dict[str, str] = {}
    check(text)
    for instruction, rest in _instructions(text):
        if instruction == "FROM":
            entrypoint, command, env = (), (), {}
        elif instruction == "ENTRYPOINT":
            entrypoint, command = _form(rest), ()
        elif instruction == "CMD":
            command = _form(rest)
        elif instruction == "ENV":
            env |= _pairs(rest)
    if not entrypoint and not command:
        raise EntrypointError("the Dockerfile's last stage has neither ENTRYPOINT nor CMD; give the command")
    if isinstance(entrypoint, str):
        result = what_runs(entrypoint, files)  # the shell form ignores CMD
    elif isinstance(command, str):
        result = what_runs([*entrypoint, command] if entrypoint else command, files)
    else:
        result = what_runs([*entrypoint, *command], files)
    return replace(result, env={**env, **result.env})


def _instructions(text: str) -> Iterator[tuple[str, str]]:
    line = ""
    for raw in text.splitlines():
        if raw.lstrip().startswith("#"):
            continue
        line += raw.rstrip()
        if line.endswith("\\"):
            line = line[:-1] + " "
            continue
        name, _, rest = line.strip().partition(" ")
        yield name.upper(), rest.strip()
        line = ""


def _form(text: str) -> Sequence[str] | str:
    """The words of the exec form (a JSON list), else the shell form's text."""
    if text.startswith("["):
        try:
            arguments = json.loads(text)
        except (ValueError, RecursionError):
            return text
        if isinstance(arguments, list) and all(isinstance(word, str) for word in arguments):
            return arguments
    return text


def _pairs(text: str) -> dict[str, str]:
    try:
        tokens = shlex.split(text)
    except ValueError:
        return {}
    if tokens and "=" not in tokens[0]:
        return {tokens[0]: " ".join(tokens[1:])}
    return dict(word.partition("=")[::2] for word in tokens if "=" in word)
