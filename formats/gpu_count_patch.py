"""The change that makes a training's manifest ask for another number of GPUs, as JSON Patch operations.

Number, launcher and split have to change together: whole command lists are replaced, never single words of a shell
line. What cannot be written is said, and then nothing is changed.
"""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kopt.core.workload.gpu_count import Operation
from kopt.core.workload.split import Framework
from kopt.formats.pod_request import TEMPLATES, gpu_container, table

_RESOURCES = ("nvidia.com/gpu", "amd.com/gpu")
_PROCESSES = ("nproc-per-node", "nproc-per-host")
_NODES = "nnodes"
_SHELLS = ("sh", "bash", "dash")
_MEGATRON = (
    "micro-batch-size",
    "tensor-model-parallel-size",
    "pipeline-model-parallel-size",
    "context-parallel-size",
    "expert-model-parallel-size",
    "expert-tensor-parallel-size",
    "sequence-parallel",
    "num-layers-per-virtual-pipeline-stage",
    "account-for-embedding-in-pipeline-split",
    "account-for-loss-in-pipeline-split",
    "use-megatron-fsdp",
    "data-parallel-sharding-strategy",
    "ckpt-format",
    "no-gradient-accumulation-fusion",
    "use-distributed-optimizer",
    "overlap-grad-reduce",
    "overlap-param-gather",
    "recompute-granularity",
    "recompute-method",
    "recompute-num-layers",
)
_TORCHTITAN = (
    "training.local-batch-size",
    "parallelism.data-parallel-replicate-degree",
    "parallelism.data-parallel-shard-degree",
    "parallelism.tensor-parallel-degree",
    "parallelism.context-parallel-degree",
    "parallelism.pipeline-parallel-degree",
    "parallelism.pipeline-parallel-microbatch-size",
    "parallelism.pipeline-parallel-schedule",
    "parallelism.pipeline-parallel-layers-per-stage",
    "activation-checkpoint.mode",
)
_OF_SPLIT = {Framework.MEGATRON.value: _MEGATRON, Framework.TORCHTITAN.value: _TORCHTITAN}
"""Options that a split decides; all others are the user's."""


class NoPatchError(ValueError):
    """The manifest cannot be made to ask for the count; the message says why."""


@dataclass(frozen=True)
class _Pods:
    """Where the pod's specification is, what it holds, and how many pods there are by the levels above it."""

    path: str
    spec: Mapping[str, Any]
    counts: tuple[tuple[str, int], ...]


def count_patch(
    manifest: Mapping[str, Any], gpus: int, wanted: int, framework: str, settings: str
) -> tuple[Operation, ...]:
    """Operations that turn ``gpus`` of the whole job into ``wanted``, split by ``settings`` of the ``framework``.

    Raises NoPatchError.
    """
    if framework not in _OF_SPLIT:
        raise NoPatchError(f"{framework} reads its split from a file of its own; change it there")
    pods = _pods(manifest)
    container = gpu_container(pods.spec)
    index = next((at for at, each in enumerate(pods.spec.get("containers", ())) if each is container), None)
    each = _gpus(container)
    if index is None or not each or gpus % each:
        raise NoPatchError("its pods do not divide the GPUs that its command starts processes for")
    number, size = _shape(gpus // each, each, wanted)
    where = f"{pods.path}/containers/{index}"
    operations = [*_resources(where, container, size), *_replicas(pods, gpus // each, number)]
    return (*operations, *_commands(where, container, size, number, framework, settings))


def _shape(number: int, each: int, wanted: int) -> tuple[int, int]:
    """Pods and GPUs of a pod: as many GPUs a pod as now, or one pod with fewer."""
    if wanted % each == 0:
        return wanted // each, each
    if wanted < each:
        return 1, wanted
    raise NoPatchError(f"{wanted} GPUs are no whole number of its {number} pods of {each}")


def _pods(manifest: Mapping[str, Any]) -> _Pods:
    path, counts = "", []
    for _ in range(12):
        spec = table(manifest.get("spec"))
        path += "/spec"
        counts += [
            (f"{path}/{name}", spec[name])
            for name in ("parallelism", "completions", "replicas", "minAvailable")
            if isinstance(spec.get(name), int)
        ]
        inner = next((name for name in TEMPLATES if isinstance(spec.get(name), Mapping)), "")
        if "containers" in spec or not inner:
            return _Pods(path, spec, tuple(counts))
        path, manifest = f"{path}/{inner}", spec[inner]
    raise NoPatchError("it is nested too deeply")


def _gpus(container: Mapping[str, Any]) -> int:
    limits = table(table(container.get("resources")).get("limits"))
    text = next((str(limits[name]) for name in _RESOURCES if name in limits), "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 6 else 0


def _resources(where: str, container: Mapping[str, Any], size: int) -> Iterator[Operation]:
    for block in ("limits", "requests"):
        amounts = table(table(container.get("resources")).get(block))
        for name in _RESOURCES:
            if name in amounts and str(amounts[name]) != str(size):
                path = f"{where}/resources/{block}/{name.replace('/', '~1')}"
                yield {"op": "replace", "path": path, "value": str(size)}


def _replicas(pods: _Pods, now: int, wanted: int) -> Iterator[Operation]:
    if now == wanted:
        return
    matching = [(path, count) for path, count in pods.counts if count == now]
    if not matching:
        raise NoPatchError("nothing in the manifest says how many pods there are")
    for path, _ in matching:
        yield {"op": "replace", "path": path, "value": wanted}


def _commands(
    where: str, container: Mapping[str, Any], size: int, number: int, framework: str, settings: str
) -> Iterator[Operation]:
    """Command and arguments with the launcher's numbers and the split's options."""
    lists = {name: _list_of(container[name]) for name in ("command", "args") if container.get(name)}
    everything = [word for arguments in lists.values() for word in arguments]
    if not everything or everything[0].rpartition("/")[2] in _SHELLS:
        raise NoPatchError("its command is a shell line; write the numbers and the split into it yourself")
    if not any(_option(word) in _PROCESSES for word in everything) and size != _gpus(container):
        raise NoPatchError("its command does not say how many processes a pod starts")
    last = list(lists)[-1]
    for name, arguments in lists.items():
        kept = _without(_launched(arguments, size, number), _OF_SPLIT[framework])
        changed = kept + (_split_arguments(settings, framework) if name == last else [])
        if changed != arguments:
            yield {"op": "replace", "path": f"{where}/{name}", "value": changed}


def _list_of(value: Any) -> list[str]:
    if not isinstance(value, Sequence) or isinstance(value, str) or not all(isinstance(each, str) for each in value):
        raise NoPatchError("its command is no list of words")
    return list(value)


def _option(word: str) -> str:
    """An option's name with dashes between its words; empty for anything else."""
    return word[2:].partition("=")[0].replace("_", "-") if word.startswith("--") else ""


def _launched(arguments: Sequence[str], size: int, number: int) -> list[str]:
    """The launcher's processes for each node and its nodes as they will be."""
    values = dict.fromkeys(_PROCESSES, size) | {_NODES: number}
    result = list(arguments)
    for at, word in enumerate(arguments):
        name = _option(word)
        if name not in values:
            continue
        if "=" in word:
            result[at] = f"{word.partition('=')[0]}={values[name]}"
        elif at + 1 < len(arguments):
            result[at + 1] = str(values[name])
    return result


def _without(arguments: Sequence[str], names: Sequence[str]) -> list[str]:
    result: list[str] = []
    drops = False
    for word in arguments:
        if word.startswith("--"):
            drops = _option(word) in names
        if not drops:
            result.append(word)
        elif not word.startswith("--"):
            # An option of a split has one value at most; what follows is no longer its own.
            drops = False
    return result


def _split_arguments(settings: str, framework: str) -> list[str]:
    lines = [shlex.split(line) for line in settings.splitlines()]
    return [word for line in lines if _option(line[0]) in _OF_SPLIT[framework] for word in line]
