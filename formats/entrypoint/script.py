"""What a Python source says about itself: frameworks, model names, argument defaults, trainer settings.

Parsed only. A source may be hostile: its size, lines and nesting are bounded before the parser sees it; servers read
sources of others in a confined process all the same (``tracing.confined_reading``).
"""

import ast
import itertools
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from kopt.formats.entrypoint.entrypoint import EntrypointError
from kopt.formats.entrypoint.options import name_set
from kopt.formats.entrypoint.script_loading import bind, record_loading
from kopt.formats.entrypoint.script_options import (
    NOT_LITERAL,
    Literal,
    Options,
    assignments,
    called_name,
    imported,
    literal_of,
    option_of,
)

MAX_SOURCE_CHARACTERS = 2 << 20
_MAX_LINE_CHARACTERS = 100_000
_MAX_NESTING = 100
_MAX_CHAIN = 1_000
_MAX_LITERALS = 500

_SETTINGS = re.compile(
    r"\w*(TrainingArguments|SFTConfig|DPOConfig|GRPOConfig|PPOConfig|RewardConfig|KTOConfig|ORPOConfig)"
)
_LORA, _QUANTISATION = {"LoraConfig", "LoHaConfig", "AdaLoraConfig"}, {"BitsAndBytesConfig"}
_MODEL_CALLS = {"from_pretrained", "from_config", "create_model", "get_peft_model", "LLM", "load_model"}
_FRAMEWORKS = name_set(
    "torch transformers accelerate deepspeed peft trl lightning pytorch_lightning timm torchvision torchaudio "
    "diffusers megatron torchtitan torchtune litgpt lit_llama vllm sglang fairscale bitsandbytes unsloth datasets "
    "torch_geometric dgl torchrec ignite fastai mmengine mmcv detectron2 ultralytics composer colossalai ray "
    "hydra tensorflow keras jax flax"
)


@dataclass(frozen=True)
class ScriptFacts:
    """Literals found in a source; anything computed is left out.

    ``defaults`` are those of ``add_argument``, by option without dashes; ``settings`` the keywords of a
    TrainingArguments-like call, ``lora`` and ``quantisation`` those of PEFT's and bitsandbytes' configurations;
    ``models`` the names given to ``from_pretrained``, ``create_model`` and their like; ``optimizers`` the classes.
    ``loading`` is how the model that is trained and its texts are read; ``bound`` names the option that a setting takes
    its value from (``per_device_train_batch_size=args.batch``), or several joined by commas; ``aliases`` gives an
    option by each name that a command may call it, ``stored`` what a name without a value stands for; ``complete``:
    the script takes no other options. ``computed`` are settings that only running the script would tell.
    Parameters of a function that ``fire`` calls, and lengths in the fields of ``HfArgumentParser``'s classes, are
    options as well.
    """

    frameworks: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    optimizers: tuple[str, ...] = ()
    defaults: Mapping[str, Literal] = field(default_factory=dict)
    settings: Mapping[str, Literal] = field(default_factory=dict)
    lora: Mapping[str, Literal] = field(default_factory=dict)
    quantisation: Mapping[str, Literal] = field(default_factory=dict)
    loading: Mapping[str, Literal] = field(default_factory=dict)
    bound: Mapping[str, Literal] = field(default_factory=dict)
    aliases: Mapping[str, Literal] = field(default_factory=dict)
    stored: Mapping[str, Literal] = field(default_factory=dict)
    complete: bool = False
    computed: tuple[str, ...] = ()
    wraps: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> "ScriptFacts":
        """Raises TypeError or ValueError for anything but ``to_dict``'s own."""
        names = ("frameworks", "models", "optimizers", "wraps", "computed")
        lists: dict[str, Any] = {name: tuple(map(str, document[name])) for name in names if name in document}
        tables = {name: dict(document[name]) for name in _TABLES if name in document}
        return cls(complete=bool(document.get("complete")), **lists | tables)


_TABLES = ("defaults", "settings", "lora", "quantisation", "loading", "bound", "aliases", "stored")


def read_script(source: str) -> ScriptFacts:
    """The facts of one source.

    Raises:
        EntrypointError: not Python, or larger or more deeply nested than scripts are; the message gives the line.
    """
    tree = parsed(source)
    try:
        return _literals(tree)
    except RecursionError:
        raise EntrypointError("an expression of the source is nested too deeply to read") from None


def parsed(source: str) -> ast.Module:
    """The tree of one source, within bounds. Raises EntrypointError as ``read_script``."""
    _screen(source)
    try:
        return ast.parse(source)
    except SyntaxError as error:
        raise EntrypointError(f"not Python: {error.msg} in line {error.lineno}; give the script as it runs") from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise EntrypointError(
            f"the source cannot be parsed: {type(error).__name__}; give the script as it runs"
        ) from None


def _screen(source: str) -> None:
    if len(source) > MAX_SOURCE_CHARACTERS:
        raise EntrypointError(f"{len(source):,} characters are no script; give at most {MAX_SOURCE_CHARACTERS:,}")
    if "\0" in source:
        raise EntrypointError("the source holds NUL bytes; give the script as text")
    for number, line in enumerate(source.splitlines(), 1):
        if len(line) > _MAX_LINE_CHARACTERS:
            raise EntrypointError(f"line {number} has {len(line):,} characters; data belongs in a file of its own")
    depth = 0
    for match in re.finditer(r"[\[({]|[\])}]", source):
        depth = max(0, depth + (1 if match[0] in "[({" else -1))
        if depth > _MAX_NESTING:
            raise EntrypointError(f"brackets are nested more than {_MAX_NESTING} deep; give the script as it runs")
    # Unary, attribute and power chains nest as deeply as brackets do, without any.
    if re.search(rf"(?:[-+~]\s*){{{_MAX_CHAIN}}}|(?:\bnot\s+){{{_MAX_CHAIN}}}|(?:\.\s*\w+\s*){{{_MAX_CHAIN}}}", source):
        raise EntrypointError(f"a chain of more than {_MAX_CHAIN} operators; give the script as it runs")


def _literals(tree: ast.Module) -> ScriptFacts:
    constants = dict(assignments(tree))
    options = Options(tree, constants)
    computed: dict[str, None] = {}
    frameworks: dict[str, None] = {}
    models: dict[str, None] = {}
    optimizers: dict[str, None] = {}
    wraps: dict[str, None] = {}
    tables: dict[str, dict[str, Literal]] = {name: {} for name in _TABLES}
    tables["defaults"].update(options.defaults)
    tables["aliases"].update(itertools.islice(options.aliases.items(), _MAX_LITERALS))
    tables["stored"].update(itertools.islice(options.stored.items(), _MAX_LITERALS))
    for node in ast.walk(tree):
        for name in imported(node):
            if name in _FRAMEWORKS:
                frameworks[name] = None
        if isinstance(node, ast.Call):
            called = called_name(node.func)
            keywords = {
                word.arg: literal
                for word in node.keywords
                if word.arg and (literal := literal_of(word.value, constants)) is not NOT_LITERAL
            }
            _record_call(called, node, keywords, constants, tables, models)
            _record_options(called, node, keywords, options, tables, computed)
            if called in _OPTIMIZERS:
                optimizers[called] = None
            if called in _WRAPPERS:
                wraps[called] = None
    if tables["settings"] or computed.keys() - {"r"} or "per_device_train_batch_size" in tables["bound"]:
        computed |= record_loading(tree, constants, options, tables)
    return ScriptFacts(
        tuple(frameworks),
        tuple(models)[:_MAX_LITERALS],
        tuple(optimizers),
        **tables,
        complete=options.complete,
        computed=tuple(computed),
        wraps=tuple(wraps),
    )


_SWITCHES = {"store_true": False, "store_false": True}
_OPTIMIZERS = name_set(
    "Adam AdamW SGD Adafactor RMSprop Adagrad Adamax NAdam RAdam LBFGS Lion LAMB AdamW8bit Adam8bit "
    "PagedAdamW8bit FusedAdam DeepSpeedCPUAdam Muon Shampoo SOAP"
)
_WRAPPERS = name_set(
    "DistributedDataParallel DDP FullyShardedDataParallel FSDP fully_shard DataParallel compile Accelerator "
    "GradScaler autocast checkpoint gradient_checkpointing_enable initialize"
)


def _record_call(
    called: str,
    node: ast.Call,
    keywords: Mapping[str, Any],
    constants: Mapping[str, Any],
    tables: Mapping[str, dict[str, Literal]],
    models: dict[str, None],
) -> None:
    if called == "add_argument" and node.args:
        option = option_of(node, constants)
        if option and len(tables["defaults"]) < _MAX_LITERALS:
            default = keywords.get("default", _SWITCHES.get(str(keywords.get("action"))))
            tables["defaults"][option] = default
    elif _SETTINGS.fullmatch(called):
        tables["settings"].update(keywords)
    elif called in _LORA:
        tables["lora"].update(keywords)
    elif called in _QUANTISATION:
        tables["quantisation"].update(keywords)
    elif called in _MODEL_CALLS and node.args:
        name = literal_of(node.args[0], constants)
        if isinstance(name, str):
            models[name[:200]] = None


_DECIDES = {
    "per_device_train_batch_size",
    "max_seq_length",
    "max_length",
    "r",
    "gradient_checkpointing",
    "bf16",
    "fp16",
}
"""Keywords of settings whose default would be another memory than what a script computes for them."""


def _record_options(
    called: str,
    node: ast.Call,
    keywords: Mapping[str, Any],
    options: Options,
    tables: Mapping[str, dict[str, Literal]],
    computed: dict[str, None],
) -> None:
    """The options that settings take their values from."""
    if not _SETTINGS.fullmatch(called) and called not in _LORA:
        return
    for word in node.keywords:
        name = word.arg or ""
        if name in keywords:
            continue
        if option := options.of(word.value):
            bind(tables["bound"], name, option)
        elif name in _DECIDES:
            computed[name] = None
