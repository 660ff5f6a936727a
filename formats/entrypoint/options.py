"""Which options of launchers and wrappers take a value, and reading them off the front of a command."""

import re
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Options:
    """Options of one program: ``flags`` take no value, ``several`` take that many, every other one takes one.

    ``bare_is_flag``: an option that is not listed is a flag (``values`` lists those that take one).
    """

    flags: frozenset[str] = frozenset()
    values: frozenset[str] = frozenset()
    several: tuple[tuple[str, int], ...] = ()
    bare_is_flag: bool = False


@dataclass(frozen=True)
class ParsedOptions:
    """Options found before the first word that is none; names without leading dashes, ``-`` as ``_``."""

    values: tuple[tuple[str, str], ...]
    rest: tuple[str, ...]

    def get(self, *names: str) -> str | None:
        """The last value given under any of the names; "" for a flag."""
        result = [value for name, value in self.values if name in names]
        return result[-1] if result else None

    def all(self, name: str) -> list[str]:
        return [value for option, value in self.values if option == name]


def read_options(arguments: Sequence[str], options: Options) -> ParsedOptions:
    """Reads options off the front of ``arguments``."""
    several = dict(options.several)
    result: list[tuple[str, str]] = []
    at = 0
    while at < len(arguments):
        word = arguments[at]
        if word == "--":
            at += 1
            break
        if not word.startswith("-") or word == "-":
            break
        name, equals, value = word.lstrip("-").partition("=")
        name = name.replace("-", "_")
        at += 1
        if attached := re.fullmatch(r"-([A-Za-z])(\d+)", word):
            result.append((attached[1], attached[2]))
        elif equals:
            result.append((name, value))
        elif name in several:
            result.append((name, " ".join(arguments[at : at + several[name]])))
            at += several[name]
        elif name in options.flags or (options.bare_is_flag and name not in options.values):
            result.append((name, ""))
        else:
            result.append((name, arguments[at] if at < len(arguments) else ""))
            at += 1
    return ParsedOptions(tuple(result), tuple(arguments[at:]))


def name_set(text: str) -> frozenset[str]:
    """The names in a text, which reads better than a long literal."""
    return frozenset(text.split())


TORCHRUN = Options(
    flags=name_set(
        "standalone no_python m module run_path use_env V virtual_local_rank h help signals_to_handle_default"
    ),
)
ACCELERATE = Options(
    flags=name_set(
        "q quiet cpu multi_gpu tpu ipex use_xpu use_mps_device use_deepspeed use_fsdp use_megatron_lm m module "
        "no_python "
        "debug same_network no_same_network downcast_bf16 "
        "tpu_cluster no_tpu_cluster tpu_use_sudo fp16 "
        "enable_cpu_affinity use_parallelism_config h help"
    ),
)
DEEPSPEED = Options(
    flags=name_set(
        "module no_python no_local_rank no_ssh no_ssh_check force_multi enable_each_rank_log_default "
        "elastic_training bind_cores_to_rank h help"
    ),
)
MPIRUN = Options(
    flags=name_set(
        "allow_run_as_root oversubscribe tag_output report_bindings v verbose q quiet nolocal display_map "
        "bind_to_none h help nooversubscribe"
    ),
    several=(("mca", 2), ("gmca", 2), ("genv", 2), ("env", 2)),
)
SRUN = Options(
    values=name_set(
        "N n c p t w x J A D o e i C M d q G a nodes ntasks ntasks_per_node gpus gpus_per_node gpus_per_task "
        "wrap array dependency mail_type mail_user comment "
        "gres cpus_per_task "
        "partition time nodelist exclude job_name account chdir output error input constraint mem mpi "
        "container_image container_mounts container_name container_workdir qos export distribution cpu_bind "
        "kill_on_bad_exit reservation"
    ),
    bare_is_flag=True,
)
HOROVODRUN = Options(flags=name_set("verbose disable_cache gloo mpi h help"))
COMPOSER = Options(flags=name_set("m module_mode c command_mode v verbose h help"))
TUNE_RUN = TORCHRUN
DOCKER = Options(
    flags=name_set(
        "rm i t it ti d privileged init detach interactive tty no_healthcheck read_only nv rocm writable_tmpfs cleanenv"
    ),
)
RAY_SUBMIT = Options(flags=name_set("no_wait verbose"))

WRAPPERS: dict[str, Options] = {
    "env": Options(values=name_set("u S C"), bare_is_flag=True),
    "nohup": Options(bare_is_flag=True),
    "setsid": Options(bare_is_flag=True),
    "exec": Options(values=name_set("a"), bare_is_flag=True),
    "command": Options(bare_is_flag=True),
    "time": Options(values=name_set("f o"), bare_is_flag=True),
    "nice": Options(),
    "ionice": Options(),
    "chrt": Options(bare_is_flag=True),
    "stdbuf": Options(),
    "timeout": Options(values=name_set("s signal k kill_after"), bare_is_flag=True),
    "numactl": Options(flags=name_set("l localalloc a all s show")),
    "taskset": Options(bare_is_flag=True),
    "sudo": Options(values=name_set("u g C h p"), bare_is_flag=True),
    "tini": Options(values=name_set("p e"), bare_is_flag=True),
    "dumb-init": Options(bare_is_flag=True),
    "catchsegv": Options(),
    "xvfb-run": Options(flags=name_set("a auto_servernum")),
    "catatonit": Options(bare_is_flag=True),
    "nsys": Options(),
    "ncu": Options(),
    "rocprof": Options(flags=name_set("stats hip_trace hsa_trace sys_trace roctx_trace")),
    "py-spy": Options(),
    "wandb": Options(),
}
"""Programs that start what follows them."""

WRAPPER_ARGUMENTS = {"timeout": 1, "taskset": 1, "chrt": 1}
"""Words of their own before the command, after the options (a duration, a mask, a priority)."""

SUBCOMMANDS: dict[tuple[str, str], Options] = {
    ("uv", "run"): Options(
        flags=name_set("frozen locked no_sync isolated no_project q quiet active no_dev all_extras m module")
    ),
    ("poetry", "run"): Options(),
    ("pipenv", "run"): Options(),
    ("pdm", "run"): Options(),
    ("rye", "run"): Options(),
    ("hatch", "run"): Options(),
    ("pixi", "run"): Options(),
    ("conda", "run"): Options(flags=name_set("no_capture_output live_stream v")),
    ("mamba", "run"): Options(),
    ("micromamba", "run"): Options(),
    ("nsys", "profile"): Options(),
    ("py-spy", "record"): Options(),
    ("coverage", "run"): Options(flags=name_set("a append branch p parallel_mode timid pylib L")),
    ("singularity", "exec"): DOCKER,
    ("apptainer", "exec"): DOCKER,
    ("docker", "run"): DOCKER,
    ("podman", "run"): DOCKER,
}
IMAGE_FIRST = {"singularity", "apptainer", "docker", "podman"}
"""Their first word is an image, not the command."""
