"""``kopt queues import``: the queues that are there, as KaiwoQueues."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from kopt.cli.errors import Refused, usage_error
from kopt.cli.open_cluster import open_cluster
from kopt.cli.output import Answer, Format, column, show
from kopt.cli.queues.manifests import documents, refused
from kopt.cli.queues.view import compiled_of
from kopt.core.scheduling.queue_tree import DEFAULT_GPU_RESOURCE, FIELD_MANAGER, Engine
from kopt.core.units import counted

if TYPE_CHECKING:
    from kopt.cluster.workloads.queue_trees.imported import Imported


@dataclass(frozen=True)
class ImportedRow:
    """One KaiwoQueue or KaiwoPool."""

    kind: str = column("kind")
    name: str = column("name")
    parent: str = column("parent")
    pools: tuple[str, ...] = column("pools", show=", ".join)


def import_queues(engine: Engine, files: Sequence[Path], kubeconfig: Path | None, output: Format) -> None:
    """Prints the manifests; what is left as it is, and what applying them would change, goes to stderr."""
    from kopt.cluster.objects.custom.kaiwo_queue import pool_document, queue_document
    from kopt.cluster.workloads.queue_trees.from_kai import from_kai
    from kopt.cluster.workloads.queue_trees.from_kueue import from_kueue

    if engine is Engine.VOLCANO:
        usage_error("queues of Volcano are not imported; write KaiwoQueues for them", "--engine")
    objects = [item for path in files for item in documents(path)] if files else asyncio.run(_live(engine, kubeconfig))
    if not all(_is_object(item) for item in objects):
        raise Refused("the files hold something that is no Kubernetes object")
    imported = from_kueue(objects) if engine is Engine.KUEUE else from_kai(objects)
    differences = _differences(imported, engine, objects) if not files else []
    manifests = [*map(pool_document, imported.pools), *map(queue_document, imported.queues)]
    header = {"engine": engine.value, "left": list(imported.skipped), "differences": differences}
    if output is Format.YAML:
        import yaml

        typer.echo(yaml.safe_dump_all(manifests, sort_keys=False, allow_unicode=True), nl=False)
    else:
        document = {**header, "manifests": manifests}
        show(Answer("queues", _rows(imported), document=document, empty="there are no queues"), output)
    _report(imported, differences, verified=not files)


def _is_object(item: Any) -> bool:
    metadata = item.get("metadata") if isinstance(item, dict) else None
    return isinstance(metadata, dict) and isinstance(metadata.get("name"), str) and isinstance(item.get("kind"), str)


def _rows(imported: "Imported") -> list[ImportedRow]:
    pools = [ImportedRow("KaiwoPool", pool.name, "", ()) for pool in imported.pools]
    return [
        *pools,
        *(ImportedRow("KaiwoQueue", queue.name, queue.parent, tuple(queue.pools)) for queue in imported.queues),
    ]


def _report(imported: "Imported", differences: Sequence[str], *, verified: bool) -> None:
    for text in imported.skipped:
        typer.echo(f"kopt: left as it is: {text}", err=True)
    for text in differences:
        typer.echo(f"kopt: applying this would change {text}", err=True)
    if verified and imported.queues and not differences:
        counts = counted(len(imported.queues), "KaiwoQueue")
        typer.echo(f"kopt: {counts}; applying them changes nothing but our label", err=True)


def _differences(imported: "Imported", engine: Engine, objects: Sequence[dict[str, Any]]) -> list[str]:
    """What applying the imported queues would change of what they were read from, labels and new objects aside."""
    from kopt.cluster.workloads.queue_trees.live import key_of_document
    from kopt.policies.queues import QueueTree, TreeError
    from kopt.policies.queues.differences import change_of, in_words

    try:
        tree = QueueTree.of(imported.queues, imported.pools)
    except TreeError as error:
        raise refused(error) from None
    live = {key_of_document(item): item for item in objects}
    result = []
    for desired in compiled_of(tree, engine, DEFAULT_GPU_RESOURCE).objects:
        was = live.get(key_of_document(desired))
        if was is None or desired["metadata"]["name"] in tree.implied:
            continue
        change = change_of(desired, was, FIELD_MANAGER)
        fields = [field for field in change.fields if not field.path.startswith("metadata.")]
        result += [
            f"{change.kind} {change.name} {it.path}: {in_words(it.before)} → {in_words(it.after)}" for it in fields
        ]
    return result


async def _live(engine: Engine, kubeconfig: Path | None) -> list[dict[str, Any]]:
    from kopt.cluster.workloads.queue_trees.live import read_live

    async with open_cluster(
        kubeconfig, missing=f"{engine.value} is not installed in this cluster", forbidden="you may not read the queues"
    ) as kube:
        live = await read_live(kube, engine)
    return [item for item in live.objects.values() if item["kind"] != "LocalQueue"]
