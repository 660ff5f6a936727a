"""What names and expressions of a Python source stand for, as far as the text says: literals, and options."""

import ast
from collections.abc import Iterator, Mapping
from typing import Any

Literal = str | int | float | bool | None
MAX_NAMES = 64
NOT_LITERAL: Any = object()


class Options:
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
            and called_name(node.func) == "Fire"
            and node.args
            and isinstance(node.args[0], ast.Name)
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef) and node.name in fired:
                self._parameters_of(node, constants)
            elif isinstance(node, ast.ClassDef) and node.name.endswith(("Arguments", "Args")):
                self._fields_of(node, constants)
            elif isinstance(node, ast.Call) and called_name(node.func) == "add_argument" and node.args:
                option = literal_of(node.args[-1], constants)
                self._given |= {option.lstrip("-").replace("-", "_")} if isinstance(option, str) else set()
        for statement in tree.body:
            target = statement.targets[0] if isinstance(statement, ast.Assign) else None
            if isinstance(statement, ast.Assign) and isinstance(target, ast.Name):
                self._copies[target.id] = self.of(statement.value)

    def _parameters_of(self, function: ast.FunctionDef, constants: Mapping[str, Any]) -> None:
        names = [argument.arg for argument in function.args.args]
        values = function.args.defaults
        for name, value in zip(names[len(names) - len(values) :], values, strict=True):
            literal = literal_of(value, constants)
            self.defaults[name] = None if literal is NOT_LITERAL else literal
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
            literal = literal_of(value, constants)
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


def assignments(tree: ast.Module) -> Iterator[tuple[str, Any]]:
    """Names that the module sets to a literal, once each."""
    for node in tree.body:
        target = node.targets[0] if isinstance(node, ast.Assign) and len(node.targets) == 1 else None
        if isinstance(target, ast.Name) and isinstance(node, ast.Assign):
            value = literal_of(node.value, {})
            if value is not NOT_LITERAL:
                yield target.id, value


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
