"""Which definitions are meant: those of this version, or those of files."""

from collections.abc import Sequence
from pathlib import Path

from kopt.cli.errors import Refused
from kopt.cluster.client.resources import CUSTOM_RESOURCE_DEFINITIONS, Object

_VERSIONED = ("name", "served", "storage")


def definitions_of(files: Sequence[Path]) -> list[Object]:
    """Of files and folders, else of this version. Raises Refused for what is no CustomResourceDefinition."""
    from kopt.cluster.objects.definitions import packaged_definitions

    if not files:
        return packaged_definitions()
    documents = [(path, document) for path in _paths(files) for document in _documents(path)]
    for path, document in documents:
        if not _is_definition(document):
            raise Refused(
                f"{path} holds something else than complete CustomResourceDefinitions (apiextensions.k8s.io/v1)"
            )
    names = [document["metadata"]["name"] for _, document in documents]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise Refused(f"{twice} is defined twice")
    if not documents:
        raise Refused(f"there is no CustomResourceDefinition in {', '.join(map(str, files))}")
    return [document for _, document in documents]


def _paths(files: Sequence[Path]) -> list[Path]:
    result: list[Path] = []
    for path in files:
        inside = [each for each in path.iterdir() if each.suffix in (".yaml", ".yml", ".json")] if path.is_dir() else []
        result += sorted(inside) if path.is_dir() else [path]
    return result


def _documents(path: Path) -> list[Object]:
    from kopt.cli.queues.manifests import documents

    return documents(path)


def _is_definition(document: object) -> bool:
    if not isinstance(document, dict) or document.get("kind") != CUSTOM_RESOURCE_DEFINITIONS.kind:
        return False
    metadata, spec = document.get("metadata"), document.get("spec")
    if document.get("apiVersion") != CUSTOM_RESOURCE_DEFINITIONS.api_version or not isinstance(metadata, dict):
        return False
    versions = spec.get("versions") if isinstance(spec, dict) else None
    return (
        isinstance(metadata.get("name"), str)
        and isinstance(versions, list)
        and bool(versions)
        and all(isinstance(each, dict) and all(key in each for key in _VERSIONED) for each in versions)
    )
