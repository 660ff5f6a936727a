"""Configurations that are Python files (mmengine's, XTuner's), read as the mapping they set; nothing is executed.

Names that the module sets, literals, ``dict(…)``, arithmetic on numbers, conditions on what is known. A call of
anything else is a mapping of its keywords under the callee's name ("type"), an imported name is its own text, and what
can only be known by running something is left out. One pass over the tree: time and memory grow with the text.
"""

import ast
import operator
from collections.abc import Callable, Mapping
from typing import Any

from kopt.formats.entrypoint.script import parsed

BASES = "_base_"
"""Files that a configuration builds on, which are not read here."""
_LONGEST, _LARGEST, _MOST = 10_000, 1 << 60, 5_000
_UNKNOWN: Any = object()
_NUMBERS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_COMPARISONS: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Is: operator.eq,
    ast.IsNot: operator.ne,
}


def read_python_config(source: str) -> dict[str, Any]:
    """What the module's names are in the end, as far as the text alone says.

    Raises:
        EntrypointError: not Python, or larger or more deeply nested than configurations are.
    """
    reader = _Reader()
    try:
        reader.run(parsed(source).body)
    except RecursionError:
        return {}
    return {name: value for name, value in reader.names.items() if value is not _UNKNOWN}


class _Reader:
    def __init__(self) -> None:
        self.names: dict[str, Any] = {}

    def run(self, body: list[ast.stmt]) -> None:
        for node in body:
            if isinstance(node, ast.Assign):
                value = self.value(node.value)
                for target in node.targets:
                    self._set(target, value)
            elif isinstance(node, ast.AnnAssign) and node.value is not None:
                self._set(node.target, self.value(node.value))
            elif isinstance(node, ast.AugAssign):
                self._set(node.target, _calculated(node.op, self.value(node.target), self.value(node.value)))
            elif isinstance(node, ast.If):
                test = self.value(node.test)
                if _decided(test):
                    self.run(node.body if test else node.orelse)
            elif isinstance(node, ast.With):
                self._with(node)

    def _with(self, node: ast.With) -> None:
        """``with read_base():`` names the files that this one builds on; other blocks run as they stand."""
        imported = [each for each in node.body if isinstance(each, ast.ImportFrom)]
        if imported:
            self.names[BASES] = [f"{'.' * each.level}{each.module or ''}" for each in imported]
        else:
            self.run(node.body)

    def _set(self, target: ast.expr, value: Any) -> None:
        if isinstance(target, ast.Name):
            if len(self.names) < _MOST:
                self.names[target.id] = value
        elif isinstance(target, ast.Subscript | ast.Attribute):
            holder = self.value(target.value)
            name = target.attr if isinstance(target, ast.Attribute) else self.value(target.slice)
            if isinstance(holder, dict) and isinstance(name, str):
                holder[name] = value
        elif isinstance(target, ast.Tuple | ast.List):
            values = value if isinstance(value, list) and len(value) == len(target.elts) else None
            for at, each in enumerate(target.elts):
                self._set(each, values[at] if values is not None else _UNKNOWN)

    def value(self, node: ast.expr) -> Any:
        """The value of an expression; ``_UNKNOWN`` where only running it would tell."""
        if isinstance(node, ast.Constant):
            return node.value if isinstance(node.value, str | int | float | bool | None) else _UNKNOWN
        if isinstance(node, ast.Name):
            return self.names.get(node.id, node.id)
        if isinstance(node, ast.Attribute):
            return self._attribute(node)
        if isinstance(node, ast.Dict):
            return self._dict(node)
        if isinstance(node, ast.List | ast.Tuple | ast.Set):
            return [None if (value := self.value(each)) is _UNKNOWN else value for each in node.elts]
        if isinstance(node, ast.Call):
            return self._call(node)
        return self._calculation(node)

    def _attribute(self, node: ast.Attribute) -> Any:
        holder = self.value(node.value)
        if isinstance(holder, dict):
            return holder.get(node.attr, _UNKNOWN)
        return f"{holder}.{node.attr}"[:_LONGEST] if isinstance(holder, str) else _UNKNOWN

    def _dict(self, node: ast.Dict) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for key, each in zip(node.keys, node.values, strict=True):
            value = self.value(each)
            if key is None:
                result |= value if isinstance(value, dict) else {}
            elif isinstance(name := self.value(key), str):
                result[name] = value
        return _known(result)

    def _call(self, node: ast.Call) -> Any:
        called = self.value(node.func)
        arguments = [self.value(each) for each in node.args]
        if called in ("int", "float", "str", "copy.deepcopy", "deepcopy", "Path", "round"):
            return _converted(str(called), arguments)
        if called in ("os.environ.get", "os.getenv"):
            return arguments[1] if len(arguments) > 1 else _UNKNOWN
        keywords: dict[str, Any] = {}
        for each in node.keywords:
            value = self.value(each.value)
            if each.arg is None:
                keywords |= value if isinstance(value, dict) else {}
            else:
                keywords[each.arg] = value
        if called in ("dict", "ConfigDict"):
            first = arguments[0] if arguments and isinstance(arguments[0], dict) else {}
            return _known({**first, **keywords})
        return _known({"type": called if isinstance(called, str) else _UNKNOWN, **keywords})

    def _calculation(self, node: ast.expr) -> Any:
        if isinstance(node, ast.BinOp):
            return _calculated(node.op, self.value(node.left), self.value(node.right))
        if isinstance(node, ast.UnaryOp):
            value = self.value(node.operand)
            if isinstance(node.op, ast.Not):
                return not value if _decided(value) else _UNKNOWN
            return -value if isinstance(node.op, ast.USub) and _number(value) else _UNKNOWN
        if isinstance(node, ast.IfExp):
            test = self.value(node.test)
            return self.value(node.body if test else node.orelse) if _decided(test) else _UNKNOWN
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            return self._compared(node)
        if isinstance(node, ast.Subscript):
            holder, name = self.value(node.value), self.value(node.slice)
            return holder.get(name, _UNKNOWN) if isinstance(holder, dict) and isinstance(name, str) else _UNKNOWN
        if isinstance(node, ast.JoinedStr):
            return self._joined(node)
        return _UNKNOWN

    def _compared(self, node: ast.Compare) -> Any:
        left, right = self.value(node.left), self.value(node.comparators[0])
        compare = _COMPARISONS.get(type(node.ops[0]))
        alike = (_number(left) and _number(right)) or isinstance(node.ops[0], ast.Eq | ast.NotEq | ast.Is | ast.IsNot)
        if compare is None or not alike or not (_decided(left) and _decided(right)):
            return _UNKNOWN
        return compare(left, right)

    def _joined(self, node: ast.JoinedStr) -> Any:
        parts = [self.value(part.value if isinstance(part, ast.FormattedValue) else part) for part in node.values]
        if not all(isinstance(part, str | int | float) for part in parts):
            return _UNKNOWN
        return "".join(str(part)[:_LONGEST] for part in parts)[:_LONGEST]


def _known(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not _UNKNOWN}


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and abs(value) < _LARGEST


def _decided(value: Any) -> bool:
    return value is None or isinstance(value, str | int | float | bool)


def _converted(called: str, arguments: list[Any]) -> Any:
    value = arguments[0] if arguments else _UNKNOWN
    if called in ("str", "Path", "deepcopy", "copy.deepcopy"):
        # A copy, so that what is set in one is not set in the other.
        return dict(value) if isinstance(value, dict) else value
    if isinstance(value, str) and len(value) < 20 and value.lstrip("-").replace(".", "", 1).isdecimal():
        value = float(value)
    if not _number(value):
        return _UNKNOWN
    return float(value) if called == "float" else int(value)


def _calculated(operation: ast.operator, left: Any, right: Any) -> Any:
    """Numbers within bounds, and sums of texts and lists."""
    if isinstance(operation, ast.Add) and type(left) is type(right) and isinstance(left, str | list):
        return left + right if len(left) + len(right) <= _LONGEST else _UNKNOWN
    if not (_number(left) and _number(right)):
        return _UNKNOWN
    if isinstance(operation, ast.Pow):
        bounded = isinstance(right, int) and 0 <= right <= (3 if abs(left) > 10 else 16)
        return left**right if bounded and abs(left) <= 1 << 16 else _UNKNOWN
    calculate = _NUMBERS.get(type(operation))
    try:
        return calculate(left, right) if calculate is not None else _UNKNOWN
    except ArithmeticError:
        return _UNKNOWN
