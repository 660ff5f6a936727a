"""Configurations that are Python files (mmengine's, XTuner's), read as the mapping they set; nothing is executed.

Names that the module sets, literals, ``dict(…)``, arithmetic on numbers, conditions on what is known. A call of
anything else is a mapping of its keywords under the callee's name ("type"), an imported name is its own text, and what
can only be known by running something (loops, ``try``, conditions on what is not known) is left out, and named. One
pass over the tree; what is copied has a budget. Files that it builds on (``with read_base():``, ``_base_``) are read in
the same way where they lie beside it, and named where they do not.
"""

import ast
import operator
import posixpath
import re
from collections.abc import Callable, Mapping
from typing import Any

from kopt.formats.entrypoint.entrypoint import EntrypointError
from kopt.formats.entrypoint.script import parsed

BASES = "_base_"
"""Files that a configuration builds on and that could not be read."""
_COMPUTED = "(computed)"
_REPLACES, _MOST_BASES = "_delete_", 32
"""mmengine's key of a mapping that replaces the base's; files that are read for one configuration."""
ReadText = Callable[[str], str | None]
"""The text of a file by its path, None where there is none."""
UNREAD = "_unread_"
"""Names that are set to what only running the file would tell, in whatever mapping they stand."""
_LONGEST, _LARGEST = 10_000, 1 << 60
_BUDGET, _ENTRY = 2_000_000, 10
"""Characters that may be copied in one file, and as how many an entry of a list or mapping counts."""
_NUMBER = re.compile(r"-?\d{1,18}(\.\d{0,18})?")
_CHANGES = {
    "update",
    "pop",
    "popitem",
    "setdefault",
    "clear",
    "append",
    "extend",
    "insert",
    "remove",
    "merge_from_dict",
}
"""Methods that change what they are called on."""
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


def read_python_config(source: str, path: str = "", read: ReadText = lambda _: None) -> dict[str, Any]:
    """What the module's names are in the end, as far as the text alone says.

    ``path`` is where it lies and ``read`` reads the files that it builds on, by paths relative to the same folder.

    Raises:
        EntrypointError: not Python, or larger or more deeply nested than configurations are.
    """
    reader = _Reader(_Bases(read), path)
    try:
        reader.run(parsed(source).body)
        return reader.result()
    except EntrypointError:
        raise
    except (RecursionError, ValueError) as error:
        raise EntrypointError(f"the configuration cannot be read: {type(error).__name__}; give a simpler one") from None


class _Bases:
    """The files that a configuration may build on, each once on the way to it, and the budget of all of them."""

    def __init__(self, read: ReadText) -> None:
        self._read = read
        self._bodies: dict[str, list[ast.stmt] | None] = {}
        self._open: list[str] = []
        self._count = 0
        self.left = _BUDGET

    def settings(self, path: str) -> dict[str, Any] | None:
        """None where there is no such file, where it builds on itself, and beyond the most files."""
        if path in self._open or self._count >= _MOST_BASES:
            return None
        body = self._body(path)
        if body is None:
            return None
        self._count += 1
        self._open.append(path)
        reader = _Reader(self, path)
        reader.run(body)
        self._open.pop()
        return reader.result()

    def merged(self, base: Any, own: Any) -> Any:
        """mmengine's: mappings into each other, unless the own one replaces the base's. Each entry counts as often as
        it is merged: what is named twice on every level is merged twice as often on the next."""
        if not isinstance(own, dict):
            return own
        self.spend(_ENTRY * (1 + len(own)))
        if not isinstance(base, dict) or own.get(_REPLACES) is True:
            return {name: value for name, value in own.items() if name != _REPLACES}
        return base | {name: self.merged(base.get(name), value) for name, value in own.items()}

    def spend(self, characters: int) -> None:
        self.left -= characters
        if self.left < 0:
            raise EntrypointError("what the file sets is larger than configurations are; give the part that trains")

    def _body(self, path: str) -> list[ast.stmt] | None:
        """The statements of a file, which is read once; what it is long counts as copied."""
        if path not in self._bodies:
            text = self._read(path) if len(self._bodies) < _MOST_BASES else None
            self.spend(len(text or ""))
            self._bodies[path] = None if text is None else parsed(text).body
        return self._bodies[path]


class _Name(str):
    """The text of a name that the file does not set: neither true nor false, nor equal to anything."""

    __slots__ = ()


class _Reader:
    def __init__(self, bases: _Bases, path: str) -> None:
        self.names: dict[str, Any] = {}
        self.unread: set[str] = set()
        self._bases, self._path = bases, path

    def result(self) -> dict[str, Any]:
        """What is known in the end, with the files of ``_base_`` below it."""
        unread = self.unread | {name for name, value in self.names.items() if value is _UNKNOWN}
        known = {name: value for name, value in self.names.items() if value is not _UNKNOWN and name != UNREAD}
        if unread:
            known[UNREAD] = sorted(unread)
        paths = known.pop(BASES, [])
        missing = []
        for name in reversed([paths] if isinstance(paths, str) else paths if isinstance(paths, list) else []):
            # Those of ``read_base()`` that could not be read are no paths.
            below = self._bases.settings(self._beside(name)) if str(name).endswith(".py") else None
            if below is None or BASES in below:
                missing.append(name if isinstance(name, str) else _COMPUTED)
            else:
                self._spend(_ENTRY * len(below))
                both = {*below.get(UNREAD, ()), *known.get(UNREAD, ())}
                known = self._bases.merged(below, known) | ({UNREAD: sorted(both)} if both else {})
        return known | ({BASES: missing[::-1]} if missing else {})

    def _beside(self, name: str) -> str:
        return posixpath.normpath(posixpath.join(posixpath.dirname(self._path), name))

    def run(self, body: list[ast.stmt]) -> None:
        for node in body:
            self._spend(_ENTRY)
            if isinstance(node, ast.Assign):
                value = self.value(node.value)
                for target in node.targets:
                    self._set(target, value)
            elif isinstance(node, ast.AnnAssign) and node.value is not None:
                self._set(node.target, self.value(node.value))
            elif isinstance(node, ast.AugAssign):
                self._set(node.target, _calculated(node.op, self.value(node.target), self.value(node.value)))
            elif isinstance(node, ast.If) and _decided(test := self.value(node.test)):
                self.run(node.body if test else node.orelse)
            elif isinstance(node, ast.With):
                self._with(node)
            elif isinstance(node, ast.Expr):
                self.value(node.value)
                self._changed(node.value)
            else:
                self._leave_out(node)

    def _spend(self, characters: int) -> None:
        self._bases.spend(characters)

    def _with(self, node: ast.With) -> None:
        """``with read_base():`` names the files that this one builds on; other blocks run as they stand."""
        imported = [each for each in node.body if isinstance(each, ast.ImportFrom)]
        for each in node.items:
            if each.optional_vars is not None:
                self._set(each.optional_vars, _UNKNOWN)
        if not imported:
            self.run(node.body)
        for statement in imported:
            self._import(statement)

    def _import(self, statement: ast.ImportFrom) -> None:
        """The names of a file of the same tree as the import has them; a file that cannot be read is named."""
        name = f"{'.' * statement.level}{statement.module or ''}"
        below = None
        if statement.level and statement.module:
            up = "../" * (statement.level - 1)
            below = self._bases.settings(self._beside(f"{up}{statement.module.replace('.', '/')}.py"))
        if below is None or BASES in below:
            before = self.names.get(BASES)
            self.names[BASES] = [*(before if isinstance(before, list) else [before] if before else []), name]
            return
        self.unread |= set(below.pop(UNREAD, ()))
        for imported in statement.names:
            if imported.name == "*":
                self.names |= {name: value for name, value in below.items() if not name.startswith("_")}
            elif imported.name in below:
                self.names[imported.asname or imported.name] = below[imported.name]

    def _leave_out(self, statement: ast.stmt) -> None:
        """Whatever a statement that is not run may set is not known any more."""
        for node in ast.walk(statement):
            if isinstance(node, ast.Import | ast.ImportFrom):
                for each in node.names:
                    self.names.pop((each.asname or each.name).partition(".")[0], None)
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                self.names.pop(node.name, None)
            elif isinstance(node, ast.Global):
                self.names |= dict.fromkeys(node.names, _UNKNOWN)
            elif isinstance(node, ast.Name | ast.Attribute | ast.Subscript) and not isinstance(node.ctx, ast.Load):
                # A function's own names are not the file's.
                if not isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                    self._set(node, _UNKNOWN)
            elif isinstance(node, ast.Call):
                self._changed(node, runs=False)

    def _changed(self, node: ast.expr, *, runs: bool = True) -> None:
        """``model.update(…)``: what it is called on is another one after it, and not known where it may not run."""
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or node.func.attr not in _CHANGES:
            return
        holder = node.func.value
        is_update = node.func.attr == "update" and len(node.args) == 1 and not node.keywords
        if runs and is_update and self._is_mapping(node.args[0]):
            self._merge(self.value(holder), self.value(node.args[0]))
            return
        # What a call returns has no name; and chains of calls are not read once for each.
        if isinstance(holder, ast.Name | ast.Attribute | ast.Subscript) and isinstance(self.value(holder), dict | list):
            self._set(holder, _UNKNOWN)

    def _is_mapping(self, node: ast.expr) -> bool:
        """Whether all of it is written there: what another call makes is not."""
        if isinstance(node, ast.Call):
            return (
                isinstance(node.func, ast.Name) and node.func.id == "dict" and all(each.arg for each in node.keywords)
            )
        return isinstance(node, ast.Dict) and None not in node.keys

    def _set(self, target: ast.expr, value: Any) -> None:
        if isinstance(target, ast.Name):
            self.names[target.id] = value
        elif isinstance(target, ast.Subscript | ast.Attribute):
            self._set_inside(target, value)
        elif isinstance(target, ast.Starred):
            self._set(target.value, _UNKNOWN)
        elif isinstance(target, ast.Tuple | ast.List):
            starred = any(isinstance(each, ast.Starred) for each in target.elts)
            alike = isinstance(value, list) and len(value) == len(target.elts) and not starred
            for at, each in enumerate(target.elts):
                self._set(each, value[at] if alike else _UNKNOWN)

    def _set_inside(self, target: ast.Subscript | ast.Attribute, value: Any) -> None:
        holder = self.value(target.value)
        name = target.attr if isinstance(target, ast.Attribute) else self.value(target.slice)
        if not isinstance(holder, dict | list):
            return
        if not isinstance(holder, dict) or not isinstance(name, str) or isinstance(name, _Name):
            self._set(target.value, _UNKNOWN)
        elif value is _UNKNOWN:
            holder.pop(name, None)
            self.unread.add(name)
        else:
            holder[name] = value

    def value(self, node: ast.expr) -> Any:
        """The value of an expression; ``_UNKNOWN`` where only running it would tell."""
        if isinstance(node, ast.Constant):
            plain = node.value is None or isinstance(node.value, str | bool) or _number(node.value)
            return node.value if plain else _UNKNOWN
        if isinstance(node, ast.Name):
            return self.names.get(node.id, _Name(node.id))
        if isinstance(node, ast.Attribute):
            return self._attribute(node)
        if isinstance(node, ast.Dict):
            return self._dict(node)
        if isinstance(node, ast.List | ast.Tuple | ast.Set):
            return [None if (value := self.value(each)) is _UNKNOWN else value for each in node.elts]
        if isinstance(node, ast.Call):
            return self._call(node)
        if isinstance(node, ast.NamedExpr):
            value = self.value(node.value)
            self._set(node.target, value)
            return value
        return self._calculation(node)

    def _attribute(self, node: ast.Attribute) -> Any:
        holder = self.value(node.value)
        if isinstance(holder, dict):
            return holder.get(node.attr, _UNKNOWN)
        if not isinstance(holder, str):
            return _UNKNOWN
        self._spend(len(holder))
        return _Name(f"{holder}.{node.attr}"[:_LONGEST])

    def _dict(self, node: ast.Dict) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for key, each in zip(node.keys, node.values, strict=True):
            value = self.value(each)
            if key is None:
                self._merge(result, value)
            elif isinstance(name := self.value(key), str):
                result[name] = value
        return self._known(result)

    def _merge(self, into: Any, value: Any) -> None:
        if isinstance(value, dict) and isinstance(into, dict):
            self._spend(_ENTRY * len(value))
            into |= value

    def _known(self, values: Mapping[str, Any]) -> dict[str, Any]:
        self.unread |= {name for name, value in values.items() if value is _UNKNOWN}
        return {name: value for name, value in values.items() if value is not _UNKNOWN}

    def _call(self, node: ast.Call) -> Any:
        called = self.value(node.func)
        arguments = [self.value(each) for each in node.args]
        if called in ("int", "float", "str", "copy.deepcopy", "deepcopy", "Path", "round"):
            if arguments and isinstance(arguments[0], dict):
                self._spend(_ENTRY * len(arguments[0]))
            return _converted(str(called), arguments)
        if called in ("os.environ.get", "os.getenv"):
            return arguments[1] if len(arguments) > 1 else _UNKNOWN
        keywords: dict[str, Any] = {}
        for each in node.keywords:
            value = self.value(each.value)
            if each.arg is None:
                self._merge(keywords, value)
            else:
                keywords[each.arg] = value
        if called in ("dict", "ConfigDict"):
            result: dict[str, Any] = {}
            self._merge(result, arguments[0] if arguments else None)
            return self._known(result | keywords)
        return self._known({"type": called if isinstance(called, str) else _UNKNOWN, **keywords})

    def _calculation(self, node: ast.expr) -> Any:
        if isinstance(node, ast.BinOp):
            result = _calculated(node.op, self.value(node.left), self.value(node.right))
            self._spend(len(result) * (_ENTRY if isinstance(result, list) else 1) if hasattr(result, "__len__") else 0)
            return result
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
        if not all(_number(part) or (isinstance(part, str) and _decided(part)) for part in parts):
            return _UNKNOWN
        self._spend(sum(len(part) for part in parts if isinstance(part, str)))
        return "".join(str(part) for part in parts)[:_LONGEST]


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and abs(value) < _LARGEST


def _decided(value: Any) -> bool:
    return value is None or (isinstance(value, str | int | float | bool) and not isinstance(value, _Name))


def _converted(called: str, arguments: list[Any]) -> Any:
    value = arguments[0] if arguments else _UNKNOWN
    if called in ("str", "Path", "deepcopy", "copy.deepcopy"):
        # A copy, so that what is set in one is not set in the other.
        return dict(value) if isinstance(value, dict) else value
    if isinstance(value, str) and value.isascii() and _NUMBER.fullmatch(value):
        value = float(value)
    if not _number(value):
        return _UNKNOWN
    return float(value) if called == "float" else int(value)


def _calculated(operation: ast.operator, left: Any, right: Any) -> Any:
    """Numbers within bounds, and sums of texts and lists."""
    if isinstance(operation, ast.Add) and type(left) is type(right) and isinstance(left, str | list):
        if isinstance(left, _Name):
            return _UNKNOWN
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
