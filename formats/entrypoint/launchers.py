"""From a command to the program that trains: wrappers, shells, launchers and Python peeled off one by one."""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import PurePosixPath

from kopt.core.reason import Reason
from kopt.formats.entrypoint import options, slurm, tools
from kopt.formats.entrypoint.entrypoint import Entrypoint, EntrypointError, Kind
from kopt.formats.entrypoint.shell import Command, Shell, check, commands

Files = Callable[[str], str | None]
"""The text of a file by the path the command gives, None where there is none."""

_MAX_DEPTH = 12
_PYTHON = re.compile(r"(python|pypy)(\d+(\.\d+)*)?t?")
_SHELLS = {"bash", "sh", "zsh", "dash", "ksh", "ash", "source", "."}
_UNSET = re.compile(r"\$\w+")
_ENTRYPOINTS = {
    "text-generation-inference": ("text-generation-launcher",),
    "vllm-openai": ("vllm", "serve"),
    "vllm-openai-rocm": ("vllm", "serve"),
}
"""Of servers' images, by the last part of their names: their options follow the image."""
_CHORES = options.name_set(
    "pip pip3 apt apt-get git wget curl mkdir echo ls cp mv rm cat cd sleep export set source conda chmod ln tar "
    "unzip which nvidia-smi rocm-smi huggingface-cli hf tee grep sed awk touch trap ulimit module wait kill exit "
    "true test [ [["
)
_PREPARES = {"export", "infer", "deploy", "rollout", "eval", "sample", "merge", "merge-lora", "preprocess", "download"}
"""What trainers' own commands do before and after training."""
_CHORE_MODULES = {"pip", "venv", "ensurepip", "http.server", "json.tool", "compileall", "nltk.downloader", "spacy"}


def what_runs(command: Sequence[str] | str, files: Files) -> Entrypoint:
    """What ``command`` would run: a command line, a list of words, or just the path of a script or notebook.

    Raises:
        EntrypointError: nothing to run in it, too large, malformed, or wrapped more deeply than anyone writes.
    """
    if isinstance(command, str) and command.endswith((".py", ".ipynb", ".sh")) and files(command) is not None:
        command = [command]  # a path, spaces and all
    if isinstance(command, str):
        shell = Shell()
        # One after the other: what is entered in a subshell ends where it does.
        result = [(item, _read(item, files, shell, 0)) for item in commands(command, shell)]
        return _best([entrypoint for _, entrypoint in result], shell, [item for item, _ in result])
    for word in command:
        check(word)
    shell = Shell()
    return _best([_read(Command(tuple(command), {}), files, shell, 0)], shell)


def _best(entrypoints: Sequence[Entrypoint | None], shell: Shell, read: Sequence[Command] = ()) -> Entrypoint:
    """The one that most looks like training: a launcher's before a plain script, later before earlier."""
    candidates = [entrypoint for entrypoint in entrypoints if entrypoint is not None]
    if not candidates:
        raise EntrypointError(
            f"no command that runs Python or a trainer was found{_neither(read)}; give the line that trains, such as "
            "'torchrun --nproc-per-node 8 train.py --batch-size 32'"
        )
    best = max(enumerate(candidates), key=lambda pair: (_rank(pair[1]), pair[0]))[1]
    others = [entrypoint.script for entrypoint in candidates if entrypoint is not best and _rank(entrypoint) > 0]
    reasons = [*best.unknown, *shell.unknown.values()]
    if others:
        reasons.append(
            Reason("SEVERAL", f"also runs {', '.join(_short(name) for name in others[:5])}; only the last is sized")
        )
    return replace(best, unknown=tuple({reason.message: reason for reason in reasons}.values()))


def _neither(read: Sequence[Command]) -> str:
    """The first program that is not known, in brackets."""
    names = [PurePosixPath(each.argv[0]).name for each in read[:_MAX_DEPTH] if each.argv]
    unknown = next((name for name in names if name not in _CHORES and re.match(r"\w", name)), None)
    return f" ({_short(unknown)} is neither)" if unknown else ""


def _rank(entrypoint: Entrypoint) -> int:
    if entrypoint.kind is Kind.CODE:
        return 0
    prepares = entrypoint.trainer and entrypoint.arguments[:1] and entrypoint.arguments[0] in _PREPARES
    return 2 if (entrypoint.launcher or entrypoint.trainer) and not prepares else 1


def _short(text: str) -> str:
    return text if len(text) <= 60 else text[:57] + "…"


def _read(command: Command, files: Files, shell: Shell, depth: int) -> Entrypoint | None:
    """The entrypoint of one simple command, None where it is no training at all."""
    if depth > _MAX_DEPTH:
        raise EntrypointError(f"commands inside commands, {_MAX_DEPTH} deep; give the innermost one")
    argv, env = _unwrap(command)
    if not argv:
        return None
    name = PurePosixPath(argv[0]).name
    if name in _SHELLS:
        entrypoint = _through_shell(argv, env, files, shell, depth)
    elif _PYTHON.fullmatch(name):
        entrypoint = _python(argv[1:], files, shell, depth)
    elif name in _LAUNCHERS:
        entrypoint = _LAUNCHERS[name](argv[1:], files, shell, depth)
    elif name.endswith((".py", ".ipynb")):
        entrypoint = _script(argv)
    elif name.endswith(".sh"):
        entrypoint = _through_shell(("bash", *argv), env, files, shell, depth)
    elif name == "eval":
        entrypoint = _evaluated(argv[1:], files, shell, depth)
    elif name in _CHORES:
        if name == "cd" and len(argv) == 2:
            shell.entered.append(argv[1])
        return None
    else:
        entrypoint = tools.read_tool(name, argv[1:])
        if entrypoint is None and depth > 0 and not name.startswith("-"):
            return None
    if entrypoint is None:
        return None
    entrypoint = _on_allocated(entrypoint, shell)
    if shell.entered and not entrypoint.folders:
        entrypoint = replace(entrypoint, folders=tuple(shell.entered[:_MAX_DEPTH]))
    return replace(entrypoint, env={**slurm.without_variables({**shell.exported, **env}), **entrypoint.env})


def _on_allocated(entrypoint: Entrypoint, shell: Shell) -> Entrypoint:
    """Where a launcher starts a process per GPU: as many as Slurm gives a node."""
    gpus = slurm.whole_number(shell.exported, slurm.GPUS)
    if gpus is None or entrypoint.launcher in (None, "srun") or entrypoint.world_size is not None:
        return entrypoint
    reasons = tuple(reason for reason in entrypoint.unknown if reason.code != "WORLD_SIZE")
    return replace(entrypoint, world_size=gpus * entrypoint.nodes, unknown=reasons)


def _unwrap(command: Command) -> tuple[tuple[str, ...], dict[str, str]]:
    """Takes ``env A=1 nohup timeout 60 …`` off the front."""
    argv, env = command.argv, dict(command.env)
    for _ in range(_MAX_DEPTH):
        while len(argv) > 1 and _UNSET.fullmatch(argv[0]):
            argv = argv[1:]  # a prefix that is not set is no word at all
        while argv and re.match(r"[A-Za-z_]\w*=", argv[0]):
            name, _, value = argv[0].partition("=")
            env[name] = value
            argv = argv[1:]
        if not argv:
            break
        name = PurePosixPath(argv[0]).name
        subcommand = options.SUBCOMMANDS.get((name, argv[1] if len(argv) > 1 else ""))
        if subcommand is not None:
            parsed = options.read_options(argv[2:], subcommand)
            env |= dict(pair.partition("=")[::2] for pair in (*parsed.all("e"), *parsed.all("env")) if "=" in pair)
            argv = _in_image(parsed.rest) if name in options.IMAGE_FIRST else parsed.rest
        elif name in options.WRAPPERS:
            argv = options.read_options(argv[1:], options.WRAPPERS[name]).rest[options.WRAPPER_ARGUMENTS.get(name, 0) :]
        else:
            break
    return argv, env


def _in_image(words: Sequence[str]) -> tuple[str, ...]:
    """What runs in an image: the words behind its name, given to its own entrypoint where that is known."""
    image, argv = words[:1], tuple(words[1:])
    if not image or (argv and not argv[0].startswith("-")):
        return argv
    name = image[0].partition("@")[0].rpartition("/")[2].partition(":")[0]
    return (*_ENTRYPOINTS.get(name, ()), *argv)


def _through_shell(
    argv: Sequence[str], env: dict[str, str], files: Files, shell: Shell, depth: int, submitted: Sequence[str] = ()
) -> Entrypoint | None:
    """``bash -c TEXT`` or ``bash FILE ARGS``; ``submitted`` are the options that ``sbatch`` was given for it."""
    parsed = options.read_options(argv[1:], options.Options(values=frozenset("oO"), bare_is_flag=True))
    clustered = {letter for name, _ in parsed.values for letter in name if len(name) <= 4}
    inner, outer_script = shell.inner({**shell.exported, **env}), shell.script
    if "c" in clustered and parsed.rest:
        text, inner.positional = parsed.rest[0], tuple(parsed.rest[2:])
    elif parsed.rest:
        path = parsed.rest[0]
        content = files(path)
        if content is None:
            shell.doubt("NO_FILE", f"{_short(path)} cannot be read; give it, or the command it runs")
            return None
        text, inner.positional, inner.script = content, tuple(parsed.rest[1:]), path
        inner.exported = {**inner.exported, **slurm.variables_of_script(content, submitted)}
    else:
        return None
    if argv[0] in ("source", "."):
        # What it calls itself there is the outer script's name or its own, by how it asks.
        inner, shell.script = shell, ""
    entrypoints = [_read(command, files, inner, depth + 1) for command in commands(text, inner)]
    shell.script = outer_script
    return _best(entrypoints, inner) if any(entrypoint is not None for entrypoint in entrypoints) else None


def _evaluated(words: Sequence[str], files: Files, shell: Shell, depth: int) -> Entrypoint | None:
    """``eval $run_cmd``: the words are a line of the same shell."""
    shell.count_text()
    entrypoints = [_read(command, files, shell, depth + 1) for command in commands(" ".join(words), shell)]
    return _best(entrypoints, shell) if any(entrypoint is not None for entrypoint in entrypoints) else None


def _python(arguments: Sequence[str], files: Files, shell: Shell, depth: int) -> Entrypoint | None:
    """``python [options] (FILE | -m MODULE | -c CODE) ARGS``."""
    at = 0
    while at < len(arguments):
        word = arguments[at]
        attached = word[2:]
        if word.startswith("-m") and not word.startswith("--"):
            rest = (attached, *arguments[at + 1 :]) if attached else tuple(arguments[at + 1 :])
            return _module(rest, files, shell, depth) if rest else None
        if word.startswith("-c") and not word.startswith("--"):
            code = attached or (arguments[at + 1] if at + 1 < len(arguments) else "")
            return Entrypoint(Kind.CODE, code, tuple(arguments[at + (1 if attached else 2) :])) if code else None
        if word == "-" or not word.startswith("-"):
            return None if word == "-" else _script(arguments[at:])
        at += 2 if word in ("-W", "-X") else 1
    return None


def _script(argv: Sequence[str]) -> Entrypoint:
    kind = Kind.NOTEBOOK if argv[0].endswith(".ipynb") else Kind.SCRIPT
    return tools.with_trainer(Entrypoint(kind, argv[0], tuple(argv[1:])))


def _module(arguments: Sequence[str], files: Files, shell: Shell, depth: int) -> Entrypoint | None:
    name, rest = arguments[0], tuple(arguments[1:])
    if name in _CHORE_MODULES:
        return None
    launcher = _LAUNCHER_MODULES.get(name)
    if launcher is not None:
        return _LAUNCHERS[launcher](rest, files, shell, depth)
    return tools.with_trainer(Entrypoint(Kind.MODULE, name, rest))


def _launched(
    parsed: options.ParsedOptions, *, module: bool, plain: bool, files: Files, shell: Shell, depth: int
) -> Entrypoint | None:
    """What a launcher starts: a script unless it is told a module or any program."""
    if not parsed.rest:
        return None
    if module:
        return _module(parsed.rest, files, shell, depth)
    name = PurePosixPath(parsed.rest[0]).name
    if plain or not name.endswith((".py", ".ipynb")):
        entrypoint = _read(Command(parsed.rest, {}), files, shell, depth + 1)
        return entrypoint or (None if plain else _script(parsed.rest))
    return _script(parsed.rest)


def number_of(text: str | None) -> int | None:
    """A number of processes or nodes; ``1:4`` means up to 4; None where the machine decides."""
    if text is None:
        return None
    last = text.rpartition(":")[2]
    return int(last) if last.isascii() and last.isdigit() and 0 < int(last[:9]) <= 1 << 20 else None


def _spread(
    entrypoint: Entrypoint | None,
    launcher: str,
    per_node: str | None,
    nodes: int | None,
    arguments: Sequence[str],
    default: str | None = None,
) -> Entrypoint | None:
    """``default`` is how many processes per node the launcher starts where it is not told."""
    if entrypoint is None:
        return None
    number = number_of(per_node or default)
    reasons = list(entrypoint.unknown)
    if number is None:
        processes = f"{per_node!r} processes per node" if per_node else "one process per GPU"
        reasons.append(Reason("WORLD_SIZE", f"{launcher} starts {processes}; give the number of GPUs"))
    world = None if number is None else number * (nodes or 1)
    return replace(
        entrypoint,
        launcher=launcher,
        world_size=world,
        nodes=nodes or 1,
        unknown=tuple(reasons),
        default_processes=not per_node,
        launcher_arguments=tuple(arguments[: len(arguments) - len(entrypoint.arguments)]),
    )


def _torchrun(arguments: Sequence[str], files: Files, shell: Shell, depth: int) -> Entrypoint | None:
    parsed = options.read_options(arguments, options.TORCHRUN)
    entrypoint = _launched(
        parsed,
        module=parsed.get("m", "module") is not None,
        plain=parsed.get("no_python") is not None,
        files=files,
        shell=shell,
        depth=depth,
    )
    return _spread(
        entrypoint, "torchrun", parsed.get("nproc_per_node"), number_of(parsed.get("nnodes")), arguments, "1"
    )


def _accelerate(arguments: Sequence[str], files: Files, shell: Shell, depth: int) -> Entrypoint | None:
    if not arguments or arguments[0] not in ("launch", "accelerate-launch"):
        return None
    parsed = options.read_options(arguments[1:], options.ACCELERATE)
    entrypoint = _launched(
        parsed,
        module=parsed.get("m", "module") is not None,
        plain=parsed.get("no_python") is not None,
        files=files,
        shell=shell,
        depth=depth,
    )
    if entrypoint is None:
        return None
    # Accelerate's number is that of all processes, on all machines; without one it starts a process per GPU.
    spread = _spread(entrypoint, "accelerate", parsed.get("num_processes", "n"), 1, arguments)
    assert spread is not None
    return replace(spread, nodes=number_of(parsed.get("num_machines")) or 1, launcher_config=parsed.get("config_file"))


def _deepspeed(arguments: Sequence[str], files: Files, shell: Shell, depth: int) -> Entrypoint | None:
    parsed = options.read_options(arguments, options.DEEPSPEED)
    entrypoint = _launched(
        parsed,
        module=parsed.get("module") is not None,
        plain=parsed.get("no_python") is not None,
        files=files,
        shell=shell,
        depth=depth,
    )
    include = parsed.get("i", "include")
    per_node = parsed.get("num_gpus") or (_included(include) if include else None)
    return _spread(entrypoint, "deepspeed", per_node, number_of(parsed.get("num_nodes")), arguments)


def _included(text: str) -> str | None:
    """``localhost:0,1@other:0,1`` names GPUs by node; all nodes must have as many."""
    counts = {len(node.partition(":")[2].split(",")) for node in text.split("@") if ":" in node}
    return str(counts.pop()) if len(counts) == 1 else None


def _mpirun(arguments: Sequence[str], files: Files, shell: Shell, depth: int) -> Entrypoint | None:
    parsed = options.read_options(arguments, options.MPIRUN)
    entrypoint = _launched(parsed, module=False, plain=True, files=files, shell=shell, depth=depth)
    # Within Slurm it starts the job's tasks, on all nodes.
    total = parsed.get("np", "n", "c") or slurm.tasks(shell.exported)
    entrypoint = _nested(entrypoint, "mpirun", total, 1, arguments)
    env = dict(pair.partition("=")[::2] for pair in parsed.all("x") if "=" in pair)
    return None if entrypoint is None else replace(entrypoint, env={**env, **entrypoint.env})


def _nested(
    entrypoint: Entrypoint | None, launcher: str, total: str | None, nodes: int | None, arguments: Sequence[str]
) -> Entrypoint | None:
    """A launcher that may start another one: ``srun torchrun …`` starts one torchrun per node."""
    if entrypoint is not None and entrypoint.launcher is not None:
        outer = nodes or number_of(total) or 1
        if entrypoint.world_size is not None and entrypoint.nodes == 1:
            return replace(entrypoint, world_size=entrypoint.world_size * outer, nodes=outer)
        return entrypoint
    return _spread(entrypoint, launcher, total, nodes, arguments)


def _srun(arguments: Sequence[str], files: Files, shell: Shell, depth: int) -> Entrypoint | None:
    """What it is not told it takes from the batch script around it; without tasks that is one on each node."""
    parsed = options.read_options(arguments, options.SRUN)
    entrypoint = _launched(parsed, module=False, plain=True, files=files, shell=shell, depth=depth)
    nodes = number_of(parsed.get("N", "nodes")) or slurm.whole_number(shell.exported, slurm.NODES)
    per_node = parsed.get("ntasks_per_node") or shell.exported.get(slurm.TASKS_PER_NODE)
    tasks = number_of(parsed.get("n", "ntasks")) or slurm.whole_number(shell.exported, slurm.TASKS)
    if entrypoint is not None and entrypoint.launcher is None and per_node is None:
        if tasks is not None:
            return _spread(replace(entrypoint), "srun", str(max(1, tasks // (nodes or 1))), nodes, arguments)
        if slurm.GPUS in shell.exported:
            per_node = "1"
    return _nested(entrypoint, "srun", per_node, nodes, arguments)


def _sbatch(arguments: Sequence[str], files: Files, shell: Shell, depth: int) -> Entrypoint | None:
    """``sbatch [options] FILE ARGS``, or ``--wrap COMMAND``."""
    parsed = options.read_options(arguments, options.SRUN)
    given = tuple(arguments[: len(arguments) - len(parsed.rest)])
    if (wrapped := parsed.get("wrap")) is not None:
        return _through_shell(("bash", "-c", wrapped), slurm.variables(parsed), files, shell, depth)
    return _through_shell(("bash", *parsed.rest), {}, files, shell, depth, given) if parsed.rest else None


def _horovodrun(arguments: Sequence[str], files: Files, shell: Shell, depth: int) -> Entrypoint | None:
    parsed = options.read_options(arguments, options.HOROVODRUN)
    entrypoint = _launched(parsed, module=False, plain=True, files=files, shell=shell, depth=depth)
    return _spread(entrypoint, "horovodrun", parsed.get("np", "num_proc"), 1, arguments)


def _composer(arguments: Sequence[str], files: Files, shell: Shell, depth: int) -> Entrypoint | None:
    parsed = options.read_options(arguments, options.COMPOSER)
    entrypoint = _launched(
        parsed,
        module=parsed.get("m", "module_mode") is not None,
        plain=parsed.get("c", "command_mode") is not None,
        files=files,
        shell=shell,
        depth=depth,
    )
    return _spread(entrypoint, "composer", parsed.get("n", "nproc", "world_size"), 1, arguments)


def _colossalai(arguments: Sequence[str], files: Files, shell: Shell, depth: int) -> Entrypoint | None:
    parsed = options.read_options(arguments[1:], options.TORCHRUN)
    entrypoint = _launched(
        parsed, module=parsed.get("m") is not None, plain=False, files=files, shell=shell, depth=depth
    )
    return _spread(
        entrypoint, "colossalai", parsed.get("nproc_per_node"), number_of(parsed.get("nnodes", "num_nodes")), arguments
    )


def _ray(arguments: Sequence[str], files: Files, shell: Shell, depth: int) -> Entrypoint | None:
    if tuple(arguments[:2]) != ("job", "submit"):
        return None
    parsed = options.read_options(arguments[2:], options.RAY_SUBMIT)
    return _read(Command(parsed.rest, {}), files, shell, depth + 1)


def _tune(arguments: Sequence[str], files: Files, shell: Shell, depth: int) -> Entrypoint | None:
    """torchtune: ``tune run [torchrun's options] RECIPE --config NAME key=value``."""
    if not arguments or arguments[0] != "run":
        return None
    parsed = options.read_options(arguments[1:], options.TUNE_RUN)
    if not parsed.rest:
        return None
    entrypoint = tools.with_trainer(Entrypoint(Kind.TOOL, "tune", parsed.rest, trainer="torchtune"))
    return _spread(
        entrypoint, "torchrun", parsed.get("nproc_per_node"), number_of(parsed.get("nnodes")), arguments, "1"
    )


_LAUNCHERS: dict[str, Callable[[Sequence[str], Files, Shell, int], Entrypoint | None]] = {
    "torchrun": _torchrun,
    "torch.distributed.run": _torchrun,
    "torch.distributed.launch": _torchrun,
    "accelerate": _accelerate,
    "accelerate-launch": lambda arguments, *rest: _accelerate(("launch", *arguments), *rest),
    "deepspeed": _deepspeed,
    "ds": _deepspeed,
    "mpirun": _mpirun,
    "mpiexec": _mpirun,
    "orterun": _mpirun,
    "srun": _srun,
    "sbatch": _sbatch,
    "horovodrun": _horovodrun,
    "composer": _composer,
    "colossalai": _colossalai,
    "ray": _ray,
    "tune": _tune,
}
_LAUNCHER_MODULES = {
    "torch.distributed.run": "torchrun",
    "torch.distributed.launch": "torchrun",
    "torch.distributed.elastic": "torchrun",
    "accelerate.commands.launch": "accelerate-launch",
    "deepspeed.launcher.runner": "deepspeed",
    "deepspeed": "deepspeed",
    "composer.cli.launcher": "composer",
}
