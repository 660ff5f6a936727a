"""SCRIPT and its ARGS on a command line: whose options are whose, and the options about running it."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from kopt.cli.errors import Refused
from kopt.cli.options import gpus
from kopt.formats.yaml_text import load_all_yaml

MANIFESTS = (".yaml", ".yml", ".json")
RUNTIMES = ("ClusterTrainingRuntime", "TrainingRuntime")
"""Kinds that a TrainJob in the same file may be made from."""
_SCRIPTS = (".py", ".ipynb")
_MAX_MANIFEST_BYTES, _MAX_SCRIPT_BYTES = 4 << 20, 16 << 20

Arguments = Annotated[list[str] | None, typer.Argument(metavar="[ARGS]...", help="What the script is given.")]
Gpu = Annotated[
    str | None,
    typer.Option(
        "--gpu",
        metavar="GPU",
        help="The GPU it is meant for: a100-40gb, mi300x, …; by default the one that "
        "a manifest selects, else a100-80gb.",
        autocompletion=gpus,
    ),
]
WorldSize = Annotated[
    int | None,
    typer.Option("--world-size", min=1, max=65536, help="Number of processes; default: as the launcher says."),
]
Timeout = Annotated[
    float, typer.Option("--timeout", min=1, max=86400, help="Seconds that the script may take on the fake device.")
]
Trainer = Annotated[
    str, typer.Option("--trainer", metavar="NAME", help="auto, hf, or a trainer whose arguments are read: megatron …")
]
Python = Annotated[
    str | None, typer.Option("--python", metavar="PATH", help="The Python that the script needs, with its torch.")
]


class ScriptCommand(TyperCommand):
    """A command whose last words are a script with options of its own.

    Our options may stand before and after the script; whatever else there is belongs to the script, and so does
    everything behind ``--``, also where it is called like an option of ours.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        own, tokens = self._split(args)
        return super().parse_args(ctx, [*own, "--", *tokens])

    def _split(self, args: list[str]) -> tuple[list[str], list[str]]:
        if "--" in args:
            at = args.index("--")
            return args[:at], args[at + 1 :]
        takes = {
            name: not getattr(param, "is_flag", False) for param in self.params for name in param.opts if name[0] == "-"
        }
        takes |= dict.fromkeys(("-h", "--help"), False)
        own: list[str] = []
        tokens: list[str] = []
        rest = iter(args)
        for word in rest:
            name, equals, _ = word.partition("=")
            if name not in takes:
                tokens.append(word)
                continue
            own.append(word)
            if takes[name] and not equals:
                own += _next(rest)
        return own, tokens


def _next(tokens: Iterator[str]) -> list[str]:
    following = next(tokens, None)
    return [] if following is None else [following]


def command_of(script: str, arguments: Sequence[str]) -> str | Sequence[str] | Mapping[str, Any]:
    """A decoded manifest for its file, a shell line for one with spaces, else the words. Raises Refused.

    A program may have the name of a folder, as ``litgpt`` has inside its own repository.
    """
    if not arguments and len(script.split()) > 1 and not _exists(script):
        return script
    path = Path(script)
    if path.is_dir() and not (arguments and path.parts == (script,)):
        raise Refused(f"{script} is a folder; name the script in it")
    if path.suffix in (*MANIFESTS, *_SCRIPTS):
        _check_file(path)
    if path.suffix in MANIFESTS:
        return read_manifest(path)
    return [script, *arguments]


def _exists(path: str) -> bool:
    """A line of more than 255 characters is no path at all, and asking for it raises."""
    try:
        return Path(path).exists()
    except (OSError, ValueError):
        return False


def _check_file(path: Path) -> None:
    """Is there something in it that can be read as a whole?"""
    if not path.exists():
        what = "script" if path.suffix in _SCRIPTS else "manifest"
        raise Refused(f"{path}: there is no such {what}")
    if not path.is_file():
        raise Refused(f"{path} is no regular file")
    most = _MAX_SCRIPT_BYTES if path.suffix in _SCRIPTS else _MAX_MANIFEST_BYTES
    size = path.stat().st_size
    if not size:
        raise Refused(f"{path} is empty")
    if size > most:
        raise Refused(f"{path} has {size >> 20} MiB; at most {most >> 20} MiB are read")


def read_manifest(path: Path) -> Mapping[str, Any]:
    """The object in a manifest's file; of several the first with a specification that is no runtime of others. Raises
    Refused."""
    documents = read_documents(path)
    described = [document for document in documents if isinstance(document.get("spec"), dict)]
    runs = [document for document in described if document.get("kind") not in RUNTIMES]
    return (runs or described or documents)[0]


def read_documents(path: Path) -> list[Mapping[str, Any]]:
    """Every object in a manifest's file; there is at least one. Raises Refused."""
    _check_file(path)
    try:
        text = path.read_text(encoding="utf-8")
        documents: list[Mapping[str, Any]] = [item for item in load_all_yaml(text) if isinstance(item, dict)]
    except ValueError as error:
        raise Refused(f"{path}: not YAML or JSON ({' '.join(str(error).split())[:200]})") from error
    if not documents:
        raise Refused(f"{path}: holds no object; give a Pod, a Job or another kind with a pod template")
    return documents


def gpu_of(command: Any, requested: str | None) -> str:
    """The GPU that is asked for, else the one that a manifest selects, else the default."""
    from kopt.models.sizing.estimate import DEFAULT_GPU

    if requested is not None or not isinstance(command, Mapping):
        return requested or DEFAULT_GPU
    from kopt.formats.pod_request import gpu_selected

    return gpu_selected(command) or DEFAULT_GPU
