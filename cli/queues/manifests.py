"""KaiwoQueues and KaiwoPools of files, as a tree."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kopt.cli.errors import Refused

if TYPE_CHECKING:
    from kopt.core.scheduling.queue_tree import KaiwoPool, KaiwoQueue
    from kopt.policies.queues import QueueTree

_GROUP = "kaiwo.ai/"
_LARGEST_BYTES = 32 << 20


def tree_of(files: Sequence[Path]) -> "QueueTree":
    """The tree that the manifests in the files make. Raises Refused for what cannot be read or contradicts itself."""
    from kopt.policies.queues import QueueTree, TreeError

    queues, pools = list["KaiwoQueue"](), list["KaiwoPool"]()
    for path in files:
        for number, document in enumerate(documents(path), 1):
            _sort(document, f"{path}, document {number}", queues, pools)
    if not queues:
        raise Refused(f"there is no KaiwoQueue in {', '.join(map(str, files))}; see docs/queues.md for one")
    try:
        return QueueTree.of(queues, pools)
    except TreeError as error:
        raise refused(error) from None


def refused(error: Exception) -> Refused:
    """Several reasons in one line each."""
    return Refused(" · ".join(str(error).splitlines()))


def documents(path: Path) -> list[Any]:
    """The YAML documents of a file, or of standard input for ``-``; a List counts as its items."""
    from kopt.formats.yaml_text import load_all_yaml

    if str(path) != "-" and path.is_file() and path.stat().st_size > _LARGEST_BYTES:
        raise Refused(f"{path} is larger than {_LARGEST_BYTES >> 20} MiB; split it")
    try:
        text = sys.stdin.read() if str(path) == "-" else path.read_text(encoding="utf-8")
        loaded = [document for document in load_all_yaml(text) if document is not None]
    except UnicodeDecodeError as error:
        raise Refused(f"{path} is no text: {error}") from None
    except ValueError as error:
        raise Refused(f"{path} is no YAML: {error}") from None
    result: list[Any] = []
    for document in loaded:
        listed = isinstance(document, dict) and str(document.get("kind", "")).endswith("List")
        items = document.get("items") if listed else [document]
        result += items if isinstance(items, list) else []
    return result


def _sort(document: Any, where: str, queues: "list[KaiwoQueue]", pools: "list[KaiwoPool]") -> None:
    from kopt.cluster.objects.custom.kaiwo_queue import API_VERSION, pool_of, queue_of

    kind = document.get("kind") if isinstance(document, dict) else None
    if kind not in ("KaiwoQueue", "KaiwoPool") or not str(document.get("apiVersion", "")).startswith(_GROUP):
        raise Refused(f"{where}: {kind or 'this'} is no KaiwoQueue or KaiwoPool of {API_VERSION}")
    if document["apiVersion"] != API_VERSION:
        raise Refused(f"{where}: {kind} is read as {API_VERSION}, not {document['apiVersion']}")
    try:
        if kind == "KaiwoQueue":
            queues.append(queue_of(document))
        else:
            pools.append(pool_of(document))
    except ValueError as error:
        raise Refused(f"{where}: {error}") from None
