"""What a Python source says about itself: frameworks, model names, argument defaults, trainer settings.

Parsed only. A source may be hostile: its size, lines and nesting are bounded before the parser sees it; servers read
sources of others in a confined process all the same (``tracing.confined_reading``).
"""

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from kopt.formats.entrypoint.entrypoint import EntrypointError
from kopt.formats.entrypoint.options import name_set

Literal = str | int | float | bool | None
MAX_SOURCE_CHARACTERS = 2 << 20
_MAX_LINE_CHARACTERS = 100_000
_MAX_NESTING = 100
_MAX_CHAIN = 1_000
_MAX_LITERALS = 500
_MAX_NAMES = 64

_SETTINGS = re.compile(
    r"\w*(TrainingArguments|SFTConfig|DPOConfig|GRPOConfig|PPOConfig|RewardConfig|KTOConfig|ORPOConfig)"
)
_LORA, _QUANTISATION = {"LoraConfig", "LoHaConfig", "AdaLoraConfig"}, {"BitsAndBytesConfig"}
_MODEL_CALLS = {"from_pretrained", "from_config", "create_model", "get_peft_model", "LLM", "load_model"}
_FRAMEWORKS = name_set(
    "torch transformers accelerate deepspeed peft trl lightning pytorch_lightning timm torchvision torchaudio "
    "diffusers megatron torchtitan torchtune litgpt vllm sglang fairscale bitsandbytes unsloth datasets "
    "torch_geometric dgl torchrec ignite fastai mmengine mmcv detectron2 ultralytics composer colossalai ray "
    "hydra tensorflow keras jax flax"
)


@dataclass(frozen=True)
class ScriptFacts:
    """Literals found in a source; anything computed is left out.

    ``defaults`` are those of ``add_argument``, by option without dashes; ``settings`` the keywords of a
    TrainingArguments-like call, ``lora`` and ``quantisation`` those of PEFT's and bitsandbytes' configurations;
    ``models`` the names given to ``from_pretrained``, ``create_model`` and their like; ``optimizers`` the classes.
    ``loading`` is how the model and its texts are read; ``bound`` names the option that a setting takes its value from
    (``per_device_train_batch_size=args.batch``); ``computed`` are settings that only running the script would tell.
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
        return cls(**lists | tables)


_TABLES = ("defaults", "settings", "lora", "quantisation", "loading", "bound")


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
    constants = dict(_assignments(tree))
    options = _Options(tree, constants)
    computed: dict[str, None] = {}
    frameworks: dict[str, None] = {}
    models: dict[str, None] = {}
    optimizers: dict[str, None] = {}
    wraps: dict[str, None] = {}
    tables: dict[str, dict[str, Literal]] = {name: {} for name in _TABLES}
    tables["defaults"].update(options.defaults)
    for node in ast.walk(tree):
        for name in _imported(node):
            if name in _FRAMEWORKS:
                frameworks[name] = None
        if isinstance(node, ast.Call):
            called = _called(node.func)
            keywords = {
                word.arg: literal
                for word in node.keywords
                if word.arg and (literal := _literal(word.value, constants)) is not _NOT_LITERAL
            }
            _record_call(called, node, keywords, constants, tables, models)
            _record_options(called, node, keywords, options, tables, computed)
            if called in _OPTIMIZERS:
                optimizers[called] = None
            if called in _WRAPPERS:
                wraps[called] = None
    return ScriptFacts(
        tuple(frameworks),
        tuple(models)[:_MAX_LITERALS],
        tuple(optimizers),
        **tables,
        computed=tuple(computed),
        wraps=tuple(wraps),
    )


_OPTIMIZERS = name_set(
    "Adam AdamW SGD Adafactor RMSprop Adagrad Adamax NAdam RAdam LBFGS Lion LAMB AdamW8bit Adam8bit "
    "PagedAdamW8bit FusedAdam DeepSpeedCPUAdam Muon Shampoo SOAP"
)
_WRAPPERS = name_set(
    "DistributedDataParallel DDP FullyShardedDataParallel FSDP fully_shard DataParallel compile Accelerator "
    "GradScaler autocast checkpoint gradient_checkpointing_enable initialize"
)
_NOT_LITERAL: Any = object()


def _record_call(
    called: str,
    node: ast.Call,
    keywords: Mapping[str, Any],
    constants: Mapping[str, Any],
    tables: Mapping[str, dict[str, Literal]],
    models: dict[str, None],
) -> None:
    if called == "add_argument" and node.args:
        option = _literal(node.args[-1], constants)
        if isinstance(option, str) and len(tables["defaults"]) < _MAX_LITERALS:
            default = keywords.get("default", False if keywords.get("action") == "store_true" else None)
            tables["defaults"][option.lstrip("-").replace("-", "_")] = default
    elif _SETTINGS.fullmatch(called):
        tables["settings"].update(keywords)
    elif called in _LORA:
        tables["lora"].update(keywords)
    elif called in _QUANTISATION:
        tables["quantisation"].update(keywords)
    elif called in _MODEL_CALLS and node.args:
        name = _literal(node.args[0], constants)
        if isinstance(name, str):
            models[name[:200]] = None


_LOADING = ("load_in_4bit", "load_in_8bit", "torch_dtype", "dtype", "attn_implementation")
_LENGTH = "max_length"
_PREPARES = {"prepare_model_for_kbit_training", "prepare_model_for_int8_training"}
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
    options: "_Options",
    tables: Mapping[str, dict[str, Literal]],
    computed: dict[str, None],
) -> None:
    """How weights and texts are loaded, and the options that settings take their values from."""
    owner = node.func.value if isinstance(node.func, ast.Attribute) else None
    is_model = called == "from_pretrained" and re.search(r"Model|LM\b", _called(owner) if owner is not None else "")
    if is_model:
        tables["loading"].update({name: keywords[name] for name in _LOADING if name in keywords})
        if node.args and (option := options.of(node.args[0])):
            tables["bound"]["model_name_or_path"] = option
    elif called in _PREPARES:
        tables["loading"]["gradient_checkpointing"] = bool(keywords.get("use_gradient_checkpointing", True))
    elif called == "gradient_checkpointing_enable":
        tables["loading"]["gradient_checkpointing"] = True
    cuts = any(word.arg == "truncation" for word in node.keywords)
    settings = _SETTINGS.fullmatch(called) or called in _LORA or is_model
    if cuts and isinstance(length := keywords.get(_LENGTH), int):
        tables["loading"][_LENGTH] = max(length, int(tables["loading"].get(_LENGTH) or 0))
    for word in node.keywords if settings or cuts else ():
        name = word.arg or ""
        if name in keywords or not (settings or name == _LENGTH):
            continue
        if option := options.of(word.value):
            tables["bound"][name] = option
        elif name in _DECIDES and (_SETTINGS.fullmatch(called) or called in _LORA):
            computed[name] = None


class _Options:
    """Names that stand for options of the command: ``args.NAME``, parameters of what ``fire`` calls, and copies."""

    def __init__(self, tree: ast.Module, constants: Mapping[str, Any]) -> None:
        self.defaults: dict[str, Literal] = {}
        self._parameters: set[str] = set()
        self._copies: dict[str, str] = {}
        self._given: set[str] = set()
        fired = {
            node.args[0].id
            for node in ast.walk(tree)
            if isinstance(node, ast.Call)
            and _called(node.func) == "Fire"
            and node.args
            and isinstance(node.args[0], ast.Name)
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef) and node.name in fired:
                self._parameters_of(node, constants)
            elif isinstance(node, ast.ClassDef) and node.name.endswith(("Arguments", "Args")):
                self._fields_of(node, constants)
            elif isinstance(node, ast.Call) and _called(node.func) == "add_argument" and node.args:
                option = _literal(node.args[-1], constants)
                self._given |= {option.lstrip("-").replace("-", "_")} if isinstance(option, str) else set()
        for statement in tree.body:
            target = statement.targets[0] if isinstance(statement, ast.Assign) else None
            if isinstance(statement, ast.Assign) and isinstance(target, ast.Name):
                self._copies[target.id] = self.of(statement.value)

    def _parameters_of(self, function: ast.FunctionDef, constants: Mapping[str, Any]) -> None:
        names = [argument.arg for argument in function.args.args]
        values = function.args.defaults
        for name, value in zip(names[len(names) - len(values) :], values, strict=True):
            literal = _literal(value, constants)
            self.defaults[name] = None if literal is _NOT_LITERAL else literal
        self._parameters |= set(names)

    def _fields_of(self, owner: ast.ClassDef, constants: Mapping[str, Any]) -> None:
        """Lengths alone: most other fields have a switch beside them."""
        for node in owner.body:
            if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name) or node.value is None:
                continue
            self._given.add(node.target.id)
            value = node.value
            if isinstance(value, ast.Call):
                value = next((word.value for word in value.keywords if word.arg == "default"), value)
            literal = _literal(value, constants)
            if node.target.id in _LENGTHS and isinstance(literal, int):
                self.defaults[node.target.id] = literal

    def of(self, node: ast.expr) -> str:
        """The option that an expression is the value of; empty where it is none's alone."""
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            return node.attr if node.attr in self._given else ""
        if isinstance(node, ast.Name):
            return node.id if node.id in self._parameters else self._copies.get(node.id, "")
        return ""


_LENGTHS = {"max_seq_length", "model_max_length", "max_length", "block_size", "cutoff_len", "max_source_length"}


def _assignments(tree: ast.Module) -> Iterator[tuple[str, Any]]:
    """Names that the module sets to a literal, once each."""
    for node in tree.body:
        target = node.targets[0] if isinstance(node, ast.Assign) and len(node.targets) == 1 else None
        if isinstance(target, ast.Name) and isinstance(node, ast.Assign):
            value = _literal(node.value, {})
            if value is not _NOT_LITERAL:
                yield target.id, value


def _imported(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name.partition(".")[0] for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and node.module:
        yield node.module.partition(".")[0]


def _called(function: ast.expr) -> str:
    return (
        function.attr if isinstance(function, ast.Attribute) else function.id if isinstance(function, ast.Name) else ""
    )


def _literal(node: ast.expr, constants: Mapping[str, Any]) -> Any:
    """The value of a literal (or of a name bound to one), also ``-1``, ``2 * 8``, ``torch.bfloat16``; names joined."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str | int | float | bool | None):
        return node.value
    if isinstance(node, ast.Name):
        return constants.get(node.id, _NOT_LITERAL)
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "torch":
        return node.attr
    if isinstance(node, ast.List | ast.Tuple) and 0 < len(node.elts) <= _MAX_NAMES:
        names = [_literal(entry, {}) for entry in node.elts]
        return ",".join(names) if all(isinstance(name, str) for name in names) else _NOT_LITERAL
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        value = _literal(node.operand, constants)
        return -value if isinstance(value, int | float) else _NOT_LITERAL
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult | ast.Add):
        first, second = _literal(node.left, constants), _literal(node.right, constants)
        if not all(isinstance(item, int | float) and abs(item) < 1 << 40 for item in (first, second)):
            return _NOT_LITERAL
        return first * second if isinstance(node.op, ast.Mult) else first + second
    return _NOT_LITERAL
