"""Writes `deploy/kustomize` from the chart: a base, and overlays that patch it to what the chart renders with a file of
values. Needs helm. A test builds all of them and holds them to the chart.

    python scripts/kustomize_bases.py [HELM]
"""

import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
CHART, FOLDER = ROOT / "deploy" / "chart", ROOT / "deploy" / "kustomize"
NAMESPACE = "kopt-system"
OVERLAYS = {"observe": "evaluation.yaml", "production": "production.yaml"}
"""Overlays by name, and the values that each stands for."""
VALUES = {
    "images": {"registry": "registry.example.com/gpu"},
    "namespace": {"create": True},
    # The chart makes these once in a cluster; a file that is in a repository cannot hold a key.
    "extender": {"tls": {"serverSecret": "kopt-extender-tls", "clientSecret": "kopt-extender-caller"}},
}
_HEAD = "# Written by scripts/kustomize_bases.py from deploy/chart{values}: change that, or patch it in an overlay.\n"
_DEFINITION = "CustomResourceDefinition"
Object = dict[str, Any]
Key = tuple[str, str, str, str]


def files(helm: str) -> dict[Path, str]:
    """Every file below the folder, with its content."""
    base = rendered(helm)
    result = {Path("base", name): text for name, text in _base(base).items()}
    for name, values in OVERLAYS.items():
        head = _HEAD.format(values=f" with deploy/values/{values}")
        for file, content in _overlay(base, rendered(helm, values)).items():
            result[Path("overlays", name, file)] = head + content
    return result


def rendered(helm: str, values: str = "") -> list[Object]:
    """What the chart renders, without hooks, with its definitions, and labelled as nothing of helm's. Secrets are left
    out: the chart makes each key once in a cluster, and a file in a repository cannot hold one."""
    options = [f"--values={ROOT / 'deploy' / 'values' / values}"] if values else []
    command = [helm, "template", "kopt", str(CHART), f"--namespace={NAMESPACE}", "--include-crds", "--no-hooks"]
    done = subprocess.run(
        [*command, *options, "--values=-"], input=yaml.safe_dump(VALUES), capture_output=True, text=True, check=True
    )
    documents = (document for document in yaml.safe_load_all(done.stdout) if document)
    return [_relabelled(document) for document in documents if document["kind"] != "Secret"]


def key_of(document: Object) -> Key:
    """API version, kind, namespace and name."""
    metadata = document["metadata"]
    return document["apiVersion"], document["kind"], metadata.get("namespace", ""), metadata["name"]


def _relabelled(value: Any) -> Any:
    if isinstance(value, list):
        return [_relabelled(item) for item in value]
    if not isinstance(value, dict):
        return value
    named = {"app.kubernetes.io/managed-by": "kustomize"}
    kept = {key: item for key, item in value.items() if key != "helm.sh/chart"}
    return {key: named[key] if item == "Helm" and key in named else _relabelled(item) for key, item in kept.items()}


def _base(documents: Sequence[Object]) -> dict[str, str]:
    definitions = [document for document in documents if document["kind"] == _DEFINITION]
    others = [document for document in documents if document["kind"] != _DEFINITION]
    head = _HEAD.format(values="")
    contents = {"definitions.yaml": _yaml(definitions), "objects.yaml": _yaml(others)}
    listed = _kustomization({"resources": list(contents)})
    return {name: head + text for name, text in {"kustomization.yaml": listed, **contents}.items()}


def _overlay(base: Sequence[Object], target: Sequence[Object]) -> dict[str, str]:
    """What has to be added to the base, changed and taken away to have the target."""
    before, after = {key_of(each): each for each in base}, {key_of(each): each for each in target}
    patches = [
        _patch(document, list(_operations(document, after[key], "")))
        for key, document in before.items()
        if key in after
    ]
    patches += [{"patch": _yaml([_deletion(before[key])])} for key in before if key not in after]
    content = {"resources": ["../../base", "objects.yaml"], "patches": [patch for patch in patches if patch]}
    added = [document for key, document in after.items() if key not in before]
    return {"kustomization.yaml": _kustomization(content), "objects.yaml": _yaml(added)}


def _patch(document: Object, operations: list[Object]) -> Object:
    if not operations:
        return {}
    group, _, version = document["apiVersion"].rpartition("/")
    metadata = document["metadata"]
    target = {"group": group, "version": version, "kind": document["kind"], "name": f"^{metadata['name']}$"}
    target["namespace"] = metadata.get("namespace", "")
    return {"target": {key: text for key, text in target.items() if text}, "patch": yaml.safe_dump(operations)}


def _operations(before: Any, after: Any, path: str) -> Iterator[Object]:
    """RFC 6902. A list of another length is replaced as a whole."""
    if before == after:
        return
    if isinstance(before, dict) and isinstance(after, dict):
        for key in before:
            if key not in after:
                yield {"op": "remove", "path": f"{path}/{_escaped(key)}"}
        for key, item in after.items():
            below = f"{path}/{_escaped(key)}"
            if key in before:
                yield from _operations(before[key], item, below)
            else:
                yield {"op": "add", "path": below, "value": item}
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for number, (old, new) in enumerate(zip(before, after, strict=True)):
            yield from _operations(old, new, f"{path}/{number}")
    else:
        yield {"op": "replace", "path": path, "value": after}


def _escaped(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")


def _deletion(document: Object) -> Object:
    names = {key: document["metadata"][key] for key in ("name", "namespace") if key in document["metadata"]}
    return {"apiVersion": document["apiVersion"], "kind": document["kind"], "metadata": names, "$patch": "delete"}


def _kustomization(content: Mapping[str, Any]) -> str:
    head = {"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization"}
    return _yaml([{**head, **{key: item for key, item in content.items() if item}}])


class _Dumper(yaml.SafeDumper):
    """Texts of several lines as they are written by hand."""


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _text)
_Dumper.ignore_aliases = lambda *_: True  # type: ignore[method-assign]


def _yaml(documents: Sequence[Object]) -> str:
    return yaml.dump_all(documents, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)


def main(helm: str) -> None:
    """Writes the files, and removes those of before."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    for name, text in files(helm).items():
        path = FOLDER / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "helm")
