"""What names and expressions of a Python source stand for, as far as the text says: literals, and options."""

import ast
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

Literal = str | int | float | bool | None
MAX_NAMES = 64
NOT_LITERAL: Any = object()

_PARSERS = re.compile(r"\w*(HfArgumentParser|H4ArgumentParser|TrlParser)")
_PARSES = re.compile(r"parse_(known_)?args(_into_dataclasses|_and_config)?")
_OTHER_USE = re.compile(r"Generat|Eval|Infer", re.I)
"""In names of classes of options that do not train."""
_CLICK = {"click", "rich_click", "asyncclick", "cloup"}
_CLICK_S_OWN = {"command", "option", "argument", "pass_context", "version_option", "help_option"}
_SHORT = re.compile(r"-[A-Za-z].")
_LENGTHS = {"max_seq_length", "model_max_length", "max_length", "block_size", "cutoff_len", "max_source_length"}


class Options:
    """Names that stand for options of the command: ``args.NAME``, parameters of what ``fire`` calls, and copies.

    ``aliases`` gives the option by every name that a command may call it (``b`` and ``batch_size``), ``stored`` what a
    name without a value stands for (``store_false``, ``const``, ``--no-x``). ``complete``: no others can be given.
    """

    def __init__(self, tree: ast.Module, constants: Mapping[str, Any]) -> None:
        self.defaults: dict[str, Literal] = {}
        self.aliases: dict[str, str] = {}
        self.stored: dict[str, Literal] = {}
        self._parameters: set[str] = set()
        self._lines: dict[str, list[range]] = {}
        self._copies: dict[str, str] = {}
        self._given: set[str] = set()
        calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
        fired = {
            node.args[0].id
            for node in calls
            if called_name(node.func) == "Fire" and node.args and isinstance(node.args[0], ast.Name)
        }
        classes = {
            each.id
            for node in calls
            if _PARSERS.fullmatch(called_name(node.func)) and node.args
            for each in _entries(node.args[0])
            if isinstance(each, ast.Name) and not _OTHER_USE.search(each.id)
        }
        with_click = any(not _CLICK.isdisjoint(imported(node)) for node in ast.walk(tree))
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef) and node.name in fired:
                self._parameters_of(node, constants)
            elif isinstance(node, ast.FunctionDef) and with_click:
                self._decorators_of(node, constants)
            elif isinstance(node, ast.ClassDef) and node.name in classes:
                self._fields_of(node, constants)
            elif isinstance(node, ast.Call) and called_name(node.func) == "add_argument":
                self._argument(node, constants)
        whole = _command_is_whole(tree) if with_click else _parser_is_whole(calls, tree)
        self.complete = whole and not fired and not classes
        self._parsed = _parsed_names(tree)
        set_often = {name for name, count in Counter(stored_names(tree)).items() if count > 1}
        for statement in tree.body:
            target = statement.targets[0] if isinstance(statement, ast.Assign) else None
            if isinstance(statement, ast.Assign) and isinstance(target, ast.Name) and target.id not in set_often:
                self._copies[target.id] = self.of(statement.value)

    def _argument(self, node: ast.Call, constants: Mapping[str, Any]) -> None:
        if option := option_of(node, constants):
            self._given.add(option)
            words = [literal_of(each, constants) for each in node.args]
            names = [_plain(word) for word in words if isinstance(word, str) and word.startswith("-")]
            self.aliases |= dict.fromkeys(names, option)
            keywords = {word.arg: word.value for word in node.keywords}
            if "action" in keywords and _ending(keywords["action"]) == "BooleanOptionalAction":
                self._switch(option, names, [f"no_{name}" for name in names if len(name) > 1])
            elif (value := bare_value(keywords, constants)) is not NOT_LITERAL:
                self.stored |= dict.fromkeys(names, value)

    def _switch(self, option: str, on: list[str], off: list[str]) -> None:
        self.aliases |= dict.fromkeys((*on, *off), option)
        self.stored |= {**dict.fromkeys(on, True), **dict.fromkeys(off, False)}

    def _decorators_of(self, function: ast.FunctionDef, constants: Mapping[str, Any]) -> None:
        """click's options: ``@click.option("--batch-size", "-b", default=8)``, ``"--half/--no-half"``.

        Other functions may call something else by their names.
        """
        for node in function.decorator_list:
            if not isinstance(node, ast.Call) or called_name(node.func) != "option":
                continue
            words = [word.strip() for each in node.args if isinstance(word := literal_of(each, constants), str)]
            names = sorted((word for word in words if word[:1] in ("-", "/")), key=lambda word: word[:2] != "--")
            on = [_plain(part) for word in names if (part := word.partition("/")[0].strip())]
            off = [_plain(part) for word in names if (part := word.partition("/")[2].strip())]
            own = next((word for word in words if word[:1] not in ("-", "/", "")), next(iter(on), "").lower())
            if not own:
                continue
            keywords = {word.arg: literal_of(word.value, constants) for word in node.keywords}
            default = keywords.get("default", NOT_LITERAL)
            switch = bool(off) or any(keywords.get(word) is True for word in ("is_flag", "count"))
            self.defaults[own] = (False if switch else None) if default is NOT_LITERAL else default
            self._lines.setdefault(own, []).append(range(function.lineno, (function.end_lineno or 0) + 1))
            self.aliases |= dict.fromkeys(on, own)
            if switch:
                self._switch(own, on, off)

    def _parameters_of(self, function: ast.FunctionDef, constants: Mapping[str, Any]) -> None:
        names = [argument.arg for argument in (*function.args.posonlyargs, *function.args.args)]
        values = function.args.defaults
        defaults = [*zip(names[len(names) - len(values) :], values, strict=True)]
        only = zip(function.args.kwonlyargs, function.args.kw_defaults, strict=True)
        defaults += [(argument.arg, value) for argument, value in only if value is not None]
        for name, value in defaults:
            literal = literal_of(value, constants)
            self.defaults[name] = None if literal is NOT_LITERAL else literal
        self._parameters |= {*names, *(argument.arg for argument in function.args.kwonlyargs)}
        self.aliases |= {name: name for name in self._parameters}

    def _fields_of(self, owner: ast.ClassDef, constants: Mapping[str, Any]) -> None:
        """Lengths alone: most other fields have a switch beside them."""
        for node in owner.body:
            if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name) or node.value is None:
                continue
            self._given.add(node.target.id)
            self.aliases[node.target.id] = node.target.id
            value = node.value
            if isinstance(value, ast.Call):
                value = next((word.value for word in value.keywords if word.arg == "default"), value)
            literal = literal_of(value, constants)
            if node.target.id in _LENGTHS and isinstance(literal, int):
                self.defaults[node.target.id] = literal

    def of(self, node: ast.expr) -> str:
        """The option that an expression is the value of; empty where it is none's alone."""
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            return node.attr if node.value.id in self._parsed and node.attr in self._given else ""
        if isinstance(node, ast.Name):
            inside = any(node.lineno in lines for lines in self._lines.get(node.id, ()))
            return node.id if inside or node.id in self._parameters else self._copies.get(node.id, "")
        return ""


def option_of(node: ast.Call, constants: Mapping[str, Any]) -> str:
    """What ``add_argument`` calls the value that it reads; empty where it does not say."""
    words = [word for each in node.args if isinstance(word := literal_of(each, constants), str)]
    stated = next((literal_of(word.value, constants) for word in node.keywords if word.arg == "dest"), None)
    name = stated or next((word for word in words if word.startswith("--")), words[0] if words else "")
    return _plain(name) if isinstance(name, str) else ""


def bare_value(keywords: Mapping[str | None, ast.expr], constants: Mapping[str, Any]) -> Any:
    """What an option of ``add_argument`` stands for where no value follows it; NOT_LITERAL where one has to."""
    action = literal_of(keywords["action"], constants) if "action" in keywords else ""
    if action in ("store_true", "store_false", "count"):
        return action != "store_false"
    optional = "nargs" in keywords and literal_of(keywords["nargs"], constants) == "?"
    if action in ("store_const", "append_const") or optional:
        return literal_of(keywords["const"], constants) if "const" in keywords else None
    return NOT_LITERAL


def _parser_is_whole(calls: list[ast.Call], tree: ast.Module) -> bool:
    """Whether all options stand in this source: its parser is made here, handed to nobody, and refuses others."""
    made = [node for node in calls if called_name(node.func) == "ArgumentParser"]
    if not made or any(word.arg in ("parents", None) for node in made for word in node.keywords):
        return False
    if any(_other_parse(node) for node in calls):
        return False
    names = {
        target.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and node.value in made
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    given = [each for node in calls for each in (*node.args, *(word.value for word in node.keywords))]
    return bool(names) and not any(isinstance(each, ast.Name) and each.id in names for each in given)


def _command_is_whole(tree: ast.Module) -> bool:
    """Whether click takes no other options: one command, whose own decorators say them all, and refuses others."""
    decorated = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.decorator_list]
    commands = [node for node in decorated if any(_ending(each) == "option" for each in node.decorator_list)]
    words = [each for node in commands for each in node.decorator_list]
    return (
        len(commands) == 1
        and not any(called_name(node.func) == "ArgumentParser" for node in ast.walk(tree) if isinstance(node, ast.Call))
        and all(_ending(each) in _CLICK_S_OWN for each in words)
        and not any(word.arg in ("context_settings", "cls", None) for each in words for word in _keywords(each))
        and all(isinstance(word, ast.Constant) for each in words if isinstance(each, ast.Call) for word in each.args)
    )


def _keywords(node: ast.expr) -> list[ast.keyword]:
    return node.keywords if isinstance(node, ast.Call) else []


def _other_parse(node: ast.Call) -> bool:
    """Options that are passed on, and those whose names are put together as the program runs."""
    if called_name(node.func) == "parse_known_args":
        return True
    return called_name(node.func) == "add_argument" and not all(isinstance(each, ast.Constant) for each in node.args)


def _ending(node: ast.expr) -> str:
    return called_name(node.func if isinstance(node, ast.Call) else node)


def _plain(word: str) -> str:
    return word.lstrip("-").replace("-", "_")


def _entries(node: ast.expr) -> list[ast.expr]:
    return list(node.elts) if isinstance(node, ast.List | ast.Tuple) else [node]


def stored_names(tree: ast.Module) -> Iterator[str]:
    """Every name as often as something is set by it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            yield node.id


def _parsed_names(tree: ast.Module) -> set[str]:
    """Names that hold what a command's words were parsed to, and nothing else."""
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    parses = {node.name for node in functions if "pars" in node.name and any(map(_is_parse, ast.walk(node)))}
    first = {node.name: node.args.args[0].arg for node in functions if node.args.args}
    parsed: Counter[str] = Counter()
    handed: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and _gives_parsed(node.value, parses):
            for target in node.targets:
                parsed.update(each.id for each in _entries(target) if isinstance(each, ast.Name))
        elif isinstance(node, ast.Call) and node.args and _gives_parsed(node.args[0], parses):
            handed.add(first.get(called_name(node.func), ""))
    often = Counter(stored_names(tree))
    return {name for name in {*parsed, *handed} if often[name] == parsed[name]}


def _gives_parsed(node: ast.expr, parses: set[str]) -> bool:
    """Also ``parser.parse_args_into_dataclasses()[0]``."""
    node = node.value if isinstance(node, ast.Subscript) else node
    return isinstance(node, ast.Call) and (_is_parse(node) or called_name(node.func) in parses)


def _is_parse(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and _PARSES.fullmatch(called_name(node.func)) is not None


def option_named(name: str, aliases: Mapping[str, Literal]) -> str:
    """The option that a command's word means: by any of its names, or by a beginning that no other shares."""
    if name in aliases:
        return str(aliases[name])
    meant = {str(option) for alias, option in aliases.items() if len(alias) > 1 and alias.startswith(name)}
    return meant.pop() if name and len(meant) == 1 else name


def taken_apart(word: str, aliases: Mapping[str, Literal], stored: Mapping[str, Literal]) -> list[str]:
    """``-b8`` as ``-b 8`` and ``-vb8`` as ``-v -b 8``, where these are options: as argparse and click read them."""
    result: list[str] = []
    rest = word[1:] if _SHORT.match(word) and _plain(word.partition("=")[0]) not in aliases else ""
    while rest and rest[0] in aliases:
        result.append(f"-{rest[0]}")
        if rest[0] not in stored or not rest[1:2].isalpha():
            return [*result, *filter(None, [rest[1:].removeprefix("=")])]
        rest = rest[1:]
    return [*result, f"-{rest}"] if result else [word]


def assignments(tree: ast.Module) -> Iterator[tuple[str, Any]]:
    """Names that the module sets to a literal, once each."""
    for node in tree.body:
        target = node.targets[0] if isinstance(node, ast.Assign) and len(node.targets) == 1 else None
        if isinstance(target, ast.Name) and isinstance(node, ast.Assign):
            value = literal_of(node.value, {})
            if value is not NOT_LITERAL:
                yield target.id, value


def imported(node: ast.AST) -> Iterator[str]:
    """Packages of an import, without what is inside them."""
    if isinstance(node, ast.Import):
        yield from (alias.name.partition(".")[0] for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and node.module:
        yield node.module.partition(".")[0]


def called_name(function: ast.expr) -> str:
    return (
        function.attr if isinstance(function, ast.Attribute) else function.id if isinstance(function, ast.Name) else ""
    )


def literal_of(node: ast.expr, constants: Mapping[str, Any]) -> Any:
    """The value of a literal (or of a name bound to one), also ``-1``, ``2 * 8``, ``torch.bfloat16``; names joined."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str | int | float | bool | None):
        return node.value
    if isinstance(node, ast.Name):
        return constants.get(node.id, NOT_LITERAL)
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "torch":
        return node.attr
    if isinstance(node, ast.List | ast.Tuple) and 0 < len(node.elts) <= MAX_NAMES:
        names = [literal_of(entry, {}) for entry in node.elts]
        return ",".join(names) if all(isinstance(name, str) for name in names) else NOT_LITERAL
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        value = literal_of(node.operand, constants)
        return -value if isinstance(value, int | float) else NOT_LITERAL
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult | ast.Add):
        first, second = literal_of(node.left, constants), literal_of(node.right, constants)
        if not all(isinstance(item, int | float) and abs(item) < 1 << 40 for item in (first, second)):
            return NOT_LITERAL
        return first * second if isinstance(node.op, ast.Mult) else first + second
    return NOT_LITERAL
