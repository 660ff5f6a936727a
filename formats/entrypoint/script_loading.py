"""How a Python source loads the model that it trains, and cuts its texts.

What depends on a condition, or stands in a function that nobody calls, is not taken as done: it is what the condition's
option says, or named as computed.
"""

import ast
from collections.abc import Iterator, Mapping
from typing import Any

from kopt.formats.entrypoint.script_flow import Flow, keyword, loads_model
from kopt.formats.entrypoint.script_options import NOT_LITERAL, Literal, Options, called_name, literal_of

KBIT_CHECKPOINTING = "kopt_kbit_checkpointing"
"""Recomputation that PEFT turns on where weights are quantised."""
_LOADING = ("load_in_4bit", "load_in_8bit", "torch_dtype", "dtype", "attn_implementation")
_FEWER_BYTES = frozenset({"load_in_4bit", "load_in_8bit", "torch_dtype", "dtype"})
_QUANTISATION, _BITS = "BitsAndBytesConfig", ("load_in_4bit", "load_in_8bit")
_QUANTISED, _MOST_CHOICES = {*_BITS, "bnb_4bit_use_double_quant"}, 16
_PREPARES = {"prepare_model_for_kbit_training", "prepare_model_for_int8_training"}
_ADAPTS, _ADAPTERS = {"LoraConfig", "get_peft_model"}, "use_lora"
_CHECKPOINTING, _LENGTH, _MODEL = "gradient_checkpointing", "max_length", "model_name_or_path"
_USUAL_LENGTH, _MOST_OPTIONS = 1024, 64
"""What is taken where no length is known: a shorter one of another call would be less."""
Value = tuple[str, Literal]
"""``given`` with a literal, ``option`` with its name, or ``computed``."""
_COMPUTED: Value = ("computed", None)
Tables = Mapping[str, dict[str, Literal]]


def record_loading(tree: ast.Module, constants: Mapping[str, Any], options: Options, tables: Tables) -> dict[str, None]:
    """Fills ``loading`` and ``bound``; gives what only running the script would tell."""
    reader = _Loading(Flow(tree), constants, options)
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    values = reader.of_model(calls)
    for name, value in reader.switched(calls):
        # What surely runs is not undone by what may.
        if name not in values or value[0] == "given":
            values[name] = value
        elif values[name] != value and values[name][0] != "given":
            values[name] = _COMPUTED
    computed: dict[str, None] = {}
    for name, (kind, content) in values.items():
        if kind == "given":
            tables["loading"][name] = content
        elif kind == "option":
            bind(tables["bound"], name, str(content))
        else:
            computed[name] = None
    return computed | reader.lengths(calls, tables)


def bind(bound: dict[str, Literal], name: str, option: str) -> None:
    """Notes one more option that a setting takes its value from."""
    before = str(bound.get(name) or "").split(",")
    if len(before) > _MOST_OPTIONS:
        return
    bound[name] = ",".join(dict.fromkeys(filter(None, (*before, option))))


class _Loading:
    def __init__(self, flow: Flow, constants: Mapping[str, Any], options: Options) -> None:
        self._flow, self._constants, self._options = flow, constants, options

    def of_model(self, calls: list[ast.Call]) -> dict[str, Value]:
        """Of the model that the trainer gets: what all of the calls that may have made it agree on."""
        if self._flow.trained is None:
            loads = [self._of_call(node) for node in calls if loads_model(node)]
            return dict.fromkeys(sorted({name for each in loads for name in each} & _FEWER_BYTES), _COMPUTED)
        loads = [self._of_call(node) for node in self._flow.trained]
        result: dict[str, Value] = {}
        for name in dict.fromkeys(name for each in loads for name in each):
            values = {each.get(name, _COMPUTED) for each in loads}
            value = values.pop() if len(values) == 1 else _COMPUTED
            if value != _COMPUTED or name in _FEWER_BYTES:
                result[name] = value
        return result

    def _of_call(self, node: ast.Call) -> dict[str, Value]:
        sure = not self._flow.guards(node) or self._is_only_way(node)
        result = {
            word.arg: self._value(word.value) if sure else _COMPUTED for word in node.keywords if word.arg in _LOADING
        }
        if node.args:
            result[_MODEL] = self._value(node.args[0])
        config = keyword(node, "quantization_config")
        if config is not None:
            result |= self._quantised(config) if sure else dict.fromkeys(_BITS, _COMPUTED)
        return {name: value for name, value in result.items() if name}

    def _is_only_way(self, node: ast.Call) -> bool:
        """A condition around one of several calls, all of which are compared."""
        return self._flow.trained is not None and len(self._flow.trained) > 1

    def _quantised(self, config: ast.expr) -> dict[str, Value]:
        if isinstance(config, ast.Constant) and config.value is None:
            return {}
        choices = self._choices(config)
        if len(choices) > _MOST_CHOICES:
            return dict.fromkeys(_BITS, _COMPUTED)
        made = [each for each in choices if isinstance(each, ast.Call) and called_name(each.func) == _QUANTISATION]
        others = [each for each in choices if each not in made and not _is_none(each)]
        if len(made) != 1 or others:
            return dict.fromkeys(_BITS, _COMPUTED)
        result = {word.arg: self._value(word.value) for word in made[0].keywords if word.arg in _QUANTISED}
        guards = self._flow.guards(made[0])
        if guards:
            switched: Value = ("option", option) if (option := self._switch(made[0])) else _COMPUTED
            result |= {name: switched for name in _BITS if name in result and result[name] != ("given", False)}
        return {name: value for name, value in result.items() if name and (value != _COMPUTED or name in _BITS)}

    def _choices(self, config: ast.expr) -> list[ast.expr]:
        if isinstance(config, ast.Name):
            values = self._flow.values(config.id)[: _MOST_CHOICES + 1]
            return [choice for each in values for choice in _branches(each)]
        return _branches(config)

    def _value(self, node: ast.expr) -> Value:
        literal = literal_of(node, self._constants)
        if literal is not NOT_LITERAL:
            return "given", literal
        option = self._options.of(node)
        return ("option", option) if option else _COMPUTED

    def _switch(self, node: ast.Call) -> str:
        """The option that alone decides whether a call runs; empty where there is none such."""
        guards = self._flow.guards(node)
        test = guards[0] if len(guards) == 1 else None
        return self._options.of(test) if test is not None else ""

    def switched(self, calls: list[ast.Call]) -> Iterator[tuple[str, Value]]:
        for node in calls:
            called = called_name(node.func)
            if called == "gradient_checkpointing_enable":
                yield from self._ran(node, _CHECKPOINTING, ("given", True))
            elif called in _ADAPTS and (option := self._switch(node)):
                yield _ADAPTERS, ("option", option)
            elif called in _PREPARES:
                use = keyword(node, "use_gradient_checkpointing") or (node.args[1] if len(node.args) > 1 else None)
                if use is None or not _is_setting(use):
                    yield from self._ran(node, KBIT_CHECKPOINTING, ("given", True) if use is None else self._value(use))

    def _ran(self, node: ast.Call, name: str, value: Value) -> Iterator[tuple[str, Value]]:
        """What a call sets, as far as the conditions say that it runs."""
        guards = self._flow.guards(node)
        test = guards[0] if len(guards) == 1 else None
        if not guards:
            yield name, value
        elif test is None or value != ("given", True):
            yield name, _COMPUTED
        elif not _is_setting(test):
            yield name, ("option", option) if (option := self._switch(node)) else _COMPUTED

    def lengths(self, calls: list[ast.Call], tables: Tables) -> dict[str, None]:
        """The longest of all that texts are cut to."""
        longest, unknown = 0, False
        for node in calls:
            cuts = keyword(node, "truncation")
            if cuts is None or (isinstance(cuts, ast.Constant) and not cuts.value):
                continue
            given = keyword(node, _LENGTH)
            kind, value = _COMPUTED if given is None else self._value(given)
            if kind == "option":
                bind(tables["bound"], _LENGTH, str(value))
            elif kind == "given" and isinstance(value, int):
                longest = max(longest, value)
            else:
                unknown = True
        if longest and (not unknown or longest > _USUAL_LENGTH):
            tables["loading"][_LENGTH] = longest
        return {_LENGTH: None} if unknown else {}


def _branches(node: ast.expr) -> list[ast.expr]:
    return [node.body, node.orelse] if isinstance(node, ast.IfExp) else [node]


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _is_setting(node: ast.expr) -> bool:
    """``training_args.gradient_checkpointing``: the setting itself decides."""
    return isinstance(node, ast.Attribute) and node.attr == _CHECKPOINTING
