"""The class of an object (K20): the signs that classes are inferred from, read off whatever object there is.

The table is the shipped one with what ``KOPT_WORKLOAD_CLASSES`` holds as JSON, which is how the chart's value
``workloadClasses`` reaches every component.
"""

import functools
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from kopt.cluster.client.resources import Object
from kopt.cluster.objects.fields import at, controller_of, items, mapping, text, texts
from kopt.core.scheduling.classify import Classified, ClassSigns, classify
from kopt.core.scheduling.workload_class import ClassTable, default_classes
from kopt.core.untrusted import UnreadableError, decode_mapping

CLASS_KEY = "kaiwo.ai/class"
"""Label or annotation, of a workload or of its pod template, in which its owner states the class."""
TABLE_VARIABLE = "KOPT_WORKLOAD_CLASSES"
_MOST_WORDS = 64
_LONGEST = 512


@functools.cache
def class_table() -> ClassTable:
    """The table in force. Raises ValueError where the variable holds no table."""
    written = os.environ.get(TABLE_VARIABLE, "")
    if not written:
        return default_classes()
    try:
        return default_classes().overridden(decode_mapping(written))
    except (UnreadableError, ValueError) as error:
        raise ValueError(f"{TABLE_VARIABLE}: {error}") from error


def stated_class(document: Any, *metadata: Mapping[str, Any]) -> str:
    """What the owner of an object states, on itself or on one of its templates; empty for nothing."""
    for each in (mapping(document, "metadata"), *metadata):
        for section in (each.get("labels"), each.get("annotations")):
            if isinstance(section, dict) and isinstance(word := section.get(CLASS_KEY), str) and word:
                return word[:_LONGEST]
    return ""


def class_of_pod(pod: Object) -> Classified:
    """By itself and the owner that it names: ReplicaSets are of services, Jobs are not."""
    return classified(pod, [("", "Pod"), *owner_kinds(pod)], [(mapping(pod, "metadata"), mapping(pod, "spec"))])


def class_of_kueue_workload(workload: Object) -> Classified:
    """Of a Workload of Kueue's: by its owner's kind, and the pod sets in it."""
    sets = [mapping(item, "template") for _, item in items(workload, "spec", "podSets")]
    pods = [(mapping(template, "metadata"), mapping(template, "spec")) for template in sets]
    return classified(workload, owner_kinds(workload), pods)


def classified(
    document: Object, kinds: Iterable[tuple[str, str]], pods: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]]
) -> Classified:
    """The class of an object with ``kinds`` (group, kind), its own first and its owners' behind, and with the metadata
    and specs of its pods."""
    stated = stated_class(document, *(metadata for metadata, _ in pods))
    table = class_table()
    if stated and table.named(stated) is not None:
        return classify(ClassSigns(stated), table)
    specs = [spec for _, spec in pods]
    containers = [container for spec in specs for _, container in items(spec, "containers")][:_MOST_WORDS]
    return classify(
        ClassSigns(
            stated,
            tuple(f"{group}/{kind}" for group, kind in kinds),
            tuple(text(container, "image")[:_LONGEST] for container in containers if text(container, "image")),
            tuple(_programs(containers)),
            tuple(_ports(containers)),
            any(map(_has_terminal, containers)),
            any(map(_answers, containers)),
            any(text(spec, "restartPolicy") in ("", "Always") for spec in specs),
        ),
        table,
    )


def owner_kinds(document: Object) -> list[tuple[str, str]]:
    """(group, kind) of the owner that controls an object, as a list of one or none."""
    controller = controller_of(document)
    return [controller] if controller[1] else []


def _programs(containers: Iterable[Any]) -> Iterator[str]:
    """The words of commands without their folders, options left out."""
    for container in containers:
        for word in (*texts(container, "command"), *texts(container, "args"))[:_MOST_WORDS]:
            yield from (part.rpartition("/")[2] for part in word[:_LONGEST].split() if not part.startswith("-"))


def _ports(containers: Iterable[Any]) -> Iterator[str]:
    for container in containers:
        for _, port in items(container, "ports"):
            yield from (str(value) for value in (at(port, "name"), at(port, "containerPort")) if value is not None)


def _has_terminal(container: Any) -> bool:
    return at(container, "tty") is True and at(container, "stdin") is True


def _answers(container: Any) -> bool:
    probe = at(container, "readinessProbe")
    return isinstance(probe, dict) and ("httpGet" in probe or "grpc" in probe)
