"""What a tree becomes, as tables and documents."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import typer

from kopt.cli.output import Answer, Format, column, printable, show
from kopt.cli.queues.fair_sharing import requirements
from kopt.cli.queues.manifests import refused
from kopt.core.scheduling.queue_tree import Compiled, Engine

if TYPE_CHECKING:
    from kopt.cluster.workloads.kueue.own_configuration import FairSharingState
    from kopt.policies.queues import QueueTree


@dataclass(frozen=True)
class PlannedRow:
    """One desired object. Quota and limit are those of its GPUs, in the engine's own words."""

    kind: str = column("kind")
    name: str = column("name")
    parent: str = column("parent")
    bounds: str = column("bounds")


@dataclass(frozen=True)
class ExplainedRow:
    """What an engine does with a queue."""

    queue: str = column("queue")
    role: str = column("role", drop=1)
    quota: str = column("quota")
    borrowing: str = column("borrowing")
    reclaim: str = column("reclaim")
    unmet: tuple[str, ...] = column("not expressible", show="; ".join)


def compiled_of(tree: "QueueTree", engine: Engine, gpu_resource: str) -> Compiled:
    """The tree for an engine. Raises Refused for what it cannot be."""
    from kopt.policies.queues import Settings, TreeError, compile_tree

    try:
        return compile_tree(tree, engine, Settings(gpu_resource))
    except TreeError as error:
        raise refused(error) from None


def show_plan(
    tree: "QueueTree", engine: Engine, compiled: Compiled, output: Format, fair: "FairSharingState | None" = None
) -> None:
    """The desired objects; for YAML as documents that can be applied. ``fair``: what a cluster's Kueue says of it."""
    if output is Format.YAML:
        typer.echo(yaml_of(tree, compiled, fair), nl=False)
        return
    document = {
        "engine": engine.value,
        "objects": compiled.objects,
        "not_expressible": [{"code": it.code, "path": it.path, "text": it.text} for it in compiled.not_expressible],
        "requires": list(compiled.requires),
        **({"fair_sharing": fair.state.value} if fair else {}),
        "notes": tree.assumptions(),
    }
    rows = [_planned(item) for item in compiled.objects]
    show(Answer("objects", rows, remarks=remarks_of(tree, compiled, fair), document=document), output)


def show_explanations(tree: "QueueTree", engine: Engine, compiled: Compiled, queue: str, output: Format) -> None:
    """A row for each queue."""
    from kopt.policies.queues.explain import explain_tree

    explanations = explain_tree(tree, engine, compiled)
    rows = [
        ExplainedRow(each.queue, each.role, each.quota, each.borrowing, each.reclaim, each.unmet)
        for each in explanations
        if queue in ("", each.queue)
    ]
    header = {"engine": engine.value, "requires": list(compiled.requires)}
    remarks = [*compiled.requires, *tree.assumptions()]
    show(Answer("queues", rows, header=header, remarks=remarks, hide_header=True), output)


def remarks_of(tree: "QueueTree", compiled: Compiled, fair: "FairSharingState | None" = None) -> list[str]:
    """What cannot be expressed, what the engine needs, what is assumed."""
    unmet = [f"{it.path}: {it.text} ({it.code})" for it in compiled.not_expressible]
    return [*unmet, *requirements(compiled, fair), *(f"{assumption}." for assumption in tree.assumptions())]


def yaml_of(tree: "QueueTree", compiled: Compiled, fair: "FairSharingState | None" = None) -> str:
    """Documents for ``kubectl apply -f -``, with the remarks as comments at their head."""
    import yaml

    comments = [f"# {it.code} {printable(it.path)}: {printable(it.text)}" for it in compiled.not_expressible]
    if comments:
        comments.insert(0, "# What these objects cannot express:")
    comments += [f"# {printable(it)}" for it in requirements(compiled, fair)]
    comments += [f"# {printable(assumption)}" for assumption in tree.assumptions()]
    body = yaml.safe_dump_all(compiled.objects, sort_keys=False, allow_unicode=True)
    return "".join(f"{line}\n" for line in comments) + body


def _planned(document: Mapping[str, Any]) -> PlannedRow:
    metadata, spec = document["metadata"], document["spec"]
    space = metadata.get("namespace")
    name = f"{space}/{metadata['name']}" if space else metadata["name"]
    parent = spec.get("cohortName") or spec.get("parentName") or spec.get("parentQueue") or spec.get("parent") or ""
    return PlannedRow(document["kind"], name, parent or spec.get("clusterQueue", ""), _bounds(spec))


def _bounds(spec: Mapping[str, Any]) -> str:
    """GPUs in one line, as the engine has them."""
    parts = []
    for group in spec.get("resourceGroups") or ():
        for flavor in group["flavors"]:
            for item in flavor["resources"]:
                if item["name"] not in ("cpu", "memory"):
                    limits = [f"{key} {item[key]}" for key in ("borrowingLimit", "lendingLimit") if key in item]
                    parts.append(f"{flavor['name']} {item['name']} {', '.join([item['nominalQuota'], *limits])}")
    if gpu := (spec.get("resources") or {}).get("gpu"):
        parts.append(f"gpu quota {gpu['quota']}, limit {gpu['limit']}, weight {gpu['overQuotaWeight']}")
    for key in ("deserved", "capability"):
        parts += [
            f"{key} {name} {value}" for name, value in (spec.get(key) or {}).items() if name not in ("cpu", "memory")
        ]
    return "; ".join(parts)
