"""The flags of ``kopt parallelism`` against the frameworks' own sources: names, values, and which take none.

``KOPT_FRAMEWORKS`` names a folder of git clones: Megatron-LM, torchtitan, DeepSpeed, Megatron-Bridge. Definitions are
read from the syntax trees of the releases below, and of what is newest at each clone's origin; nothing of a framework
is imported. Many splits of several models are printed for every framework that can run them. Prints Markdown; returns 1
when a release does not take what is printed for it.

    KOPT_FRAMEWORKS=~/src python -P -m benchmarks framework-flags
"""

import ast
import functools
import io
import json
import os
import shlex
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from benchmarks.tables import markdown

MODELS = ("Llama-3-8B", "Llama-3-70B", "gpt2-xl", "Qwen3-30B-A3B", "DeepSeek-V2-Lite")
_MOST_SPLITS = 60
_NEWEST = "origin/HEAD"


@dataclass(frozen=True)
class Option:
    """What a framework takes under a name. ``takes_value`` is False for a switch; ``choices`` are empty where any value
    of its type is taken."""

    takes_value: bool = True
    choices: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Version:
    """A framework's sources: parts of the repositories at a tag or a commit, and how options are read from them."""

    repository: str
    ref: str
    folders: Mapping[str, str]
    """Folder of Python sources by repository: the framework's own, and what its classes derive from."""
    read: Callable[["Classes"], Mapping[str, Option]]
    refs: Mapping[str, str] = field(default_factory=dict)
    """Of the other repositories."""


class Classes:
    """All classes of some source trees by name, with the syntax trees they stand in."""

    def __init__(self, trees: Mapping[str, ast.Module]) -> None:
        self.trees = trees
        self._by_name: dict[str, list[ast.ClassDef]] = {}
        self._imported: dict[str, str] = {}
        for tree in trees.values():
            for node in ast.walk(tree):
                if isinstance(node, ast.ClassDef):
                    self._by_name.setdefault(node.name, []).append(node)
                elif isinstance(node, ast.ImportFrom):
                    self._imported |= {alias.asname: alias.name for alias in node.names if alias.asname}

    def fields(self, name: str) -> dict[str, ast.AnnAssign]:
        """Annotated attributes of a class and of what it derives from."""
        return self._fields(name, set())

    def _fields(self, name: str, seen: set[int]) -> dict[str, ast.AnnAssign]:
        result: dict[str, ast.AnnAssign] = {}
        for node in self._by_name.get(name) or self._by_name.get(self._imported.get(name, ""), []):
            if id(node) in seen:
                continue
            seen.add(id(node))
            for base in node.bases:
                result |= self._fields(ast.unparse(base).rpartition(".")[2], seen)
            # A class that derives from its namesake under another name comes after it.
            result |= {
                each.target.id: each
                for each in node.body
                if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
            }
        for alias, original in self._imported.items():
            if alias == name and original != name:
                result = self._fields(original, seen) | result
        return result


def megatron_options(classes: Classes) -> dict[str, Option]:
    """Arguments by name without dashes: of ``add_argument``, and of dataclasses that become groups of arguments."""
    tree = next(tree for path, tree in classes.trees.items() if path.endswith("megatron/training/arguments.py"))
    lists = {
        target.id: node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name) and isinstance(node.value, ast.List)
    }
    result: dict[str, Option] = {}
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        name = ast.unparse(call.func).rpartition(".")[2]
        keywords = {keyword.arg: keyword.value for keyword in call.keywords}
        if name == "add_argument":
            flags = [arg.value for arg in call.args if isinstance(arg, ast.Constant) and isinstance(arg.value, str)]
            result |= dict.fromkeys((flag.lstrip("-") for flag in flags), _argument(keywords))
        elif name == "ArgumentGroupFactory" and call.args:
            excluded = keywords.get("exclude")
            excluded = lists.get(excluded.id) if isinstance(excluded, ast.Name) else excluded
            left_out = set(_literal(excluded) or ())
            for attribute, node in classes.fields(ast.unparse(call.args[0])).items():
                if attribute not in left_out:
                    result |= _of_attribute(attribute, node)
    return result


def _argument(keywords: Mapping[str | None, ast.expr]) -> Option:
    action = _literal(keywords.get("action"))
    switch = isinstance(action, str) and action.startswith("store_")
    return Option(not switch, frozenset(map(str, _literal(keywords.get("choices")) or ())))


def _of_attribute(attribute: str, node: ast.AnnAssign) -> dict[str, Option]:
    """As Megatron-LM names the arguments of a dataclass: what is on by default gets switches that turn it off."""
    dashed = attribute.replace("_", "-")
    default = node.value
    metadata = None
    if isinstance(default, ast.Call):
        keywords = {keyword.arg: keyword.value for keyword in default.keywords}
        default, metadata = keywords.get("default"), keywords.get("metadata")
    names = _named_in(metadata)
    if ast.unparse(node.annotation) != "bool":
        return dict.fromkeys(names or [dashed], _annotated(node.annotation))
    if isinstance(default, ast.Constant) and default.value is True:
        return dict.fromkeys(names or [f"no-{dashed}", f"disable-{dashed}"], Option(False))
    return dict.fromkeys(names or [dashed], Option(False))


def _named_in(metadata: ast.expr | None) -> list[str]:
    for node in ast.walk(metadata) if metadata is not None else ():
        if isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                if isinstance(key, ast.Constant) and key.value == "arg_names":
                    return [name.lstrip("-") for name in _literal(value) or ()]
    return []


def _annotated(annotation: ast.expr) -> Option:
    literal = next(
        (
            node
            for node in ast.walk(annotation)
            if isinstance(node, ast.Subscript) and ast.unparse(node.value).endswith("Literal")
        ),
        None,
    )
    if literal is None:
        return Option()
    values = literal.slice.elts if isinstance(literal.slice, ast.Tuple) else [literal.slice]
    # An optional one takes None as well, whatever else is listed.
    text = ast.unparse(annotation)
    optional = {"null", "None"} if "None" in text or "Optional" in text else set()
    return Option(True, frozenset({str(_literal(value)) for value in values} | optional))


def torchtitan_options(classes: Classes) -> dict[str, Option]:
    """``section.option`` of the configuration's sections."""
    result = {}
    of_jobs = any(path.endswith("config/job_config.py") for path in classes.trees)
    for section, node in (classes.fields("JobConfig") if of_jobs else _trainer_sections(classes)).items():
        for name, each in classes.fields(ast.unparse(node.annotation)).items():
            switch = ast.unparse(each.annotation) == "bool"
            result[f"{section}.{name}"] = Option(False) if switch else _annotated(each.annotation)
    return result


def _trainer_sections(classes: Classes) -> dict[str, ast.AnnAssign]:
    """The sections of versions whose trainer holds the configuration."""
    path = next(path for path in classes.trees if path.endswith("torchtitan/trainer.py"))
    (config,) = [
        node for node in ast.walk(classes.trees[path]) if isinstance(node, ast.ClassDef) and node.name == "Config"
    ]
    return {
        each.target.id: each
        for each in config.body
        if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
    }


def deepspeed_options(classes: Classes) -> dict[str, Option]:
    """Keys of the JSON document; those of its sections behind a dot."""
    constants = {
        node.value.value
        for path, tree in classes.trees.items()
        if path.endswith("runtime/constants.py")
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    }
    result = {name: Option() for name in constants if name.isidentifier()}
    sections = {
        "bf16": "DeepSpeedBF16Config",
        "fp16": "DeepSpeedFP16Config",
        "zero_optimization": "DeepSpeedZeroConfig",
    }
    for section, name in sections.items():
        result[section] = Option()
        result |= {f"{section}.{each}": _annotated(node.annotation) for each, node in classes.fields(name).items()}
    return result


def bridge_options(classes: Classes) -> dict[str, Option]:
    """Overrides of a recipe: ``part.option`` of the parts of its container."""
    parts = {
        "model": "GPTModelProvider",
        "dataset": "GPTDatasetConfig",
        "train": "TrainingConfig",
        "ddp": "DistributedDataParallelConfig",
    }
    container = classes.fields("ConfigContainer")
    return {
        f"{part}.{name}": _annotated(node.annotation)
        for part, of in parts.items()
        if part in container
        for name, node in classes.fields(of).items()
    }


VERSIONS = {
    "megatron": Version("Megatron-LM", "core_v0.19.0", {"Megatron-LM": "megatron"}, megatron_options),
    "nemo": Version(
        "Megatron-Bridge",
        "v0.6.0",
        {"Megatron-Bridge": "src/megatron", "Megatron-LM": "megatron"},
        bridge_options,
        {"Megatron-LM": "core_v0.19.0"},
    ),
    "torchtitan": Version("torchtitan", "v0.2.2", {"torchtitan": "torchtitan"}, torchtitan_options),
    "deepspeed": Version("DeepSpeed", "v0.19.5", {"DeepSpeed": "deepspeed/runtime"}, deepspeed_options),
}
"""By the name of the framework."""


def classes_of(version: Version, clones: Path) -> Classes:
    """Raises ValueError with git's words where a clone or the version is not there."""
    trees: dict[str, ast.Module] = {}
    for repository, folder in version.folders.items():
        ref = version.ref if repository == version.repository else version.refs.get(repository, "HEAD")
        for path, text in _sources(clones / repository, ref, folder):
            trees[f"{repository}/{path}"] = ast.parse(text)
    return Classes(trees)


def _sources(clone: Path, ref: str, folder: str) -> Iterator[tuple[str, str]]:
    done = subprocess.run(["git", "-C", str(clone), "archive", ref, folder], capture_output=True, check=False)
    if done.returncode:
        raise ValueError(f"{clone}: {done.stderr.decode(errors='replace').strip()}; clone it with all its tags")
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
        for member in archive:
            content = archive.extractfile(member) if member.name.endswith(".py") else None
            if content is not None:
                yield member.name, content.read().decode("utf-8", "replace")


def commit_of(clone: Path, ref: str) -> str:
    """The commit that a tag names, shortened, and its day."""
    command = ["git", "-C", str(clone), "log", "-1", "--format=%h, %cs", ref]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


@functools.cache
def printed(framework: str) -> dict[str, set[str | None]]:
    """Names that are printed for a framework over the splits of all models, with their values (None: a switch)."""
    from kopt.core.workload.language_models import find_language_model
    from kopt.core.workload.split import Framework, Matmul, TrainingJob
    from kopt.models.parallelism.flags import settings_of
    from kopt.models.parallelism.splits import splits_of

    wanted = Framework(framework)
    result: dict[str, set[str | None]] = {}
    for model in MODELS:
        job = TrainingJob(find_language_model(model), "H100-SXM5-80GB", 64, 8, 4096, 256, wanted)
        for matmul in (Matmul.BF16, Matmul.FP8, Matmul.FP16):
            found = list(splits_of(replace(job, matmul=matmul)))
            for split in found[:: max(1, len(found) // _MOST_SPLITS)]:
                for each in settings_of(replace(job, matmul=matmul), split):
                    if each.framework is wanted:
                        for name, value in _names(framework, each.text):
                            result.setdefault(name, set()).add(value)
    return result


def _names(framework: str, text: str) -> Iterator[tuple[str, str | None]]:
    if framework == "deepspeed":
        yield from _keys(json.loads(text))
    elif framework == "nemo":
        yield from ((name, value) for name, _, value in (line.partition("=") for line in text.splitlines()))
    else:
        for line in text.splitlines():
            name, *value = shlex.split(line)
            yield name.removeprefix("--"), value[0] if value else None


def _keys(document: Mapping[str, Any], section: str = "") -> Iterator[tuple[str, str | None]]:
    for name, value in document.items():
        yield f"{section}{name}", str(value)
        if isinstance(value, dict):
            yield from _keys(value, f"{section}{name}.")


def problems(names: Mapping[str, set[str | None]], options: Mapping[str, Option]) -> list[str]:
    """What the framework does not take of what is printed."""
    result = []
    for name, values in sorted(names.items()):
        option = options.get(name)
        if option is None:
            result.append(f"`{name}` is not known")
        elif option.takes_value and None in values:
            result.append(f"`{name}` takes a value")
        elif not option.takes_value and values != {None}:
            result.append(f"`{name}` takes no value")
        elif option.choices and (wrong := {str(value) for value in values} - option.choices):
            result.append(f"`{name}` is none of {', '.join(sorted(option.choices))}: {', '.join(sorted(wrong))}")
    return result


def _literal(node: ast.expr | None) -> Any:
    try:
        return None if node is None else ast.literal_eval(node)
    except ValueError:
        return None


def _row(framework: str, version: Version, clones: Path, label: str) -> tuple[Sequence[str], int]:
    options = version.read(classes_of(version, clones))
    names = printed(framework)
    wrong = problems(names, options)
    at = f"{version.repository} {label} ({commit_of(clones / version.repository, version.ref)})"
    return (framework, at, str(len(options)), str(len(names)), "; ".join(wrong) or "none"), len(wrong)


def main() -> int:
    """Print the table; 0 when the releases know all that is printed."""
    folder = os.environ.get("KOPT_FRAMEWORKS", "")
    if not folder:
        print("KOPT_FRAMEWORKS names no folder of clones: Megatron-LM, torchtitan, DeepSpeed, Megatron-Bridge")
        return 1
    clones, failures, rows = Path(folder), 0, []
    for framework, version in VERSIONS.items():
        row, wrong = _row(framework, version, clones, version.ref)
        rows.append(row)
        failures += wrong
        newest = replace(version, ref=_NEWEST, refs=dict.fromkeys(version.refs, _NEWEST))
        rows.append(_row(framework, newest, clones, "main")[0])
    print(markdown(("framework", "version", "options defined", "names printed", "not taken"), rows))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
