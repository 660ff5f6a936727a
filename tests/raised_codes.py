"""Every reason code that the source can give, read from its syntax trees.

A code is an argument of a constructor (`CONSTRUCTORS`). Where that is a parameter of the function around it, the calls
of that function give the codes; assignments, constants of other modules, conditional expressions, tables and returned
or yielded values are followed. What is not understood is reported, never left out.
"""

import ast
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

CONSTRUCTORS = {
    ("core/reason.py", "Reason"): (0, "code"),
    ("core/scheduling/queue_tree.py", "NotExpressible"): (0, "code"),
    ("controllers/overview/job.py", "Finding"): (1, "code"),
    ("controllers/admission/mutating.py", "Record"): (1, "code"),
    ("controllers/autoscaling/forecasts.py", "NoForecastError"): (0, "code"),
    ("controllers/preemption/patches.py", "outcome_document"): (2, "code"),
}
"""Where, counted without ``self``, and under which name they take a code, by file and name."""

_Function = ast.FunctionDef | ast.AsyncFunctionDef
_Callee = tuple[str, str]
_Way = tuple[str | int, ...]
"""From a value to a part of it: indexes of tuples, and `_EACH` for every element."""
_EACH = "each"
_METHOD = "*"
_MOST_STEPS = 12


class NotUnderstood(Exception):
    """An expression whose values the source does not show."""


class _Module:
    """A file's calls, imports and, by scope and name, what is assigned."""

    def __init__(self, path: str, tree: ast.Module) -> None:
        self.path, self.tree = path, tree
        self.parents: dict[ast.AST, ast.AST] = {}
        self.imports: dict[str, tuple[str, str]] = {}
        self.calls: list[ast.Call] = []
        self.functions: dict[str, list[_Function]] = defaultdict(list)
        self._bound: dict[tuple[ast.AST, str], list[tuple[ast.expr, _Way]]] = defaultdict(list)
        self._visit(tree, tree)

    def _visit(self, node: ast.AST, scope: ast.AST) -> None:
        match node:
            case ast.ImportFrom(module=str() as module) if module.startswith("kopt."):
                folder = module.removeprefix("kopt.").replace(".", "/")
                self.imports |= {name.asname or name.name: (folder, name.name) for name in node.names}
            case ast.Call():
                self.calls.append(node)
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                self.functions[node.name].append(node)
                scope = node
            case ast.Assign(targets=targets, value=value):
                for target in targets:
                    self._bind(scope, target, value)
            case ast.AnnAssign(target=target, value=ast.expr() as value) | ast.NamedExpr(target=target, value=value):
                self._bind(scope, target, value)
            case ast.For(target=target, iter=value) | ast.comprehension(target=target, iter=value):
                self._bind(scope, target, value, (_EACH,))
        for child in ast.iter_child_nodes(node):
            self.parents[child] = node
            self._visit(child, scope)

    def _bind(self, scope: ast.AST, target: ast.expr, value: ast.expr, way: _Way = ()) -> None:
        if isinstance(target, ast.Name):
            self._bound[scope, target.id].append((value, way))
        for index, element in enumerate(target.elts if isinstance(target, ast.Tuple) else ()):
            self._bind(scope, element, value, (*way, index))

    def scopes(self, node: ast.AST) -> Iterator[ast.AST]:
        """The functions around a node, the innermost first, and the module."""
        while node in self.parents:
            node = self.parents[node]
            if isinstance(node, _Function | ast.Module):
                yield node

    def bound(self, scope: ast.AST, name: str) -> Sequence[tuple[ast.expr, _Way]]:
        """What a name stands for in a scope: expressions, and the way to the part of each that is meant."""
        return self._bound.get((scope, name), ())


class RaisedCodes:
    """``by_path`` has the codes of each file; ``open`` what was not understood, as file and expression."""

    def __init__(self, root: Path, folders: Iterable[str]) -> None:
        paths = [path for folder in folders for path in sorted((root / folder).rglob("*.py"))]
        self._modules = {
            str(path.relative_to(root)): _Module(
                str(path.relative_to(root)), ast.parse(path.read_text(encoding="utf-8"))
            )
            for path in paths
        }
        self.by_path: dict[str, set[str]] = defaultdict(set)
        self.open: set[tuple[str, str]] = set()
        self._takers: dict[_Callee, tuple[int, str]] = dict(CONSTRUCTORS)
        calls = self._calls()
        # Takers are added while the codes of others are read.
        done: set[_Callee] = set()
        while waiting := [taker for taker in self._takers if taker not in done]:
            for taker in waiting:
                done.add(taker)
                for module, call in calls[taker]:
                    self._read(module, call, *self._takers[taker])

    def _calls(self) -> dict[_Callee, list[tuple[_Module, ast.Call]]]:
        calls: dict[_Callee, list[tuple[_Module, ast.Call]]] = defaultdict(list)
        for module in self._modules.values():
            for call in module.calls:
                calls[self._callee(module, call.func)].append((module, call))
        return calls

    def _callee(self, module: _Module, function: ast.expr) -> _Callee:
        if isinstance(function, ast.Name):
            folder, name = module.imports.get(function.id, ("", function.id))
            return (self._file(folder), name) if folder else (module.path, name)
        return (_METHOD, function.attr) if isinstance(function, ast.Attribute) else ("", "")

    def _file(self, folder: str) -> str:
        return next((path for path in (f"{folder}.py", f"{folder}/__init__.py") if path in self._modules), "")

    def _read(self, module: _Module, call: ast.Call, position: int, name: str) -> None:
        given = [keyword.value for keyword in call.keywords if keyword.arg == name] or call.args[position:][:1]
        if not given:
            self.open.add((module.path, ast.unparse(call)))
            return
        try:
            self.by_path[module.path] |= self._values(module, given[0])
        except NotUnderstood:
            self.open.add((module.path, ast.unparse(given[0])))

    def _values(self, module: _Module, node: ast.expr, way: _Way = (), steps: int = _MOST_STEPS) -> set[str]:
        """The strings that an expression, or the part of it to which ``way`` leads, can be."""
        if not steps:
            raise NotUnderstood

        def joined(parts: Iterable[ast.expr], rest: _Way = way) -> set[str]:
            return set().union(*(self._values(module, part, rest, steps - 1) for part in parts))

        match node:
            case ast.Constant(value=str() as text) if not way:
                return {text}
            case ast.IfExp(body=body, orelse=other):
                return joined((body, other))
            case ast.BoolOp(values=parts):
                return joined(parts)
            case ast.Tuple(elts=parts) | ast.List(elts=parts) if way and way[0] == _EACH:
                return joined(parts, way[1:])
            case ast.Tuple(elts=parts) if way and isinstance(way[0], int):
                return joined(parts[way[0] :][:1], way[1:])
            case ast.Dict(values=parts) if way and way[0] == _EACH:
                return joined(parts, way[1:])
            case ast.Attribute(attr="code"):
                return set()  # the code of another reason, which is read where that is made
            case ast.Subscript(slice=ast.Constant(value="code")):
                return set()
            case ast.Call() if any(isinstance(part, ast.Constant) and part.value == "code" for part in ast.walk(node)):
                return set()  # out of a document
            case ast.Subscript(value=table) | ast.Call(func=ast.Attribute(value=table, attr="get")):
                return joined((table,), (_EACH, *way))
            case ast.Call():
                return self._results(module, node, way, steps)
            case ast.Name(id=name):
                return self._meant(module, node, name, way, steps)
        raise NotUnderstood

    def _results(self, module: _Module, call: ast.Call, way: _Way, steps: int) -> set[str]:
        """What a function returns or yields."""
        path, name = self._callee(module, call.func)
        other = self._modules.get(module.path if path == _METHOD else path)
        if other is None or name not in other.functions:
            raise NotUnderstood
        results: set[str] = set()
        for node in (node for function in other.functions[name] for node in ast.walk(function)):
            if isinstance(node, ast.Return | ast.Yield) and node.value is not None:
                rest = way[1:] if isinstance(node, ast.Yield) and way[:1] == (_EACH,) else way
                results |= self._values(other, node.value, rest, steps - 1)
        return results

    def _meant(self, module: _Module, node: ast.expr, name: str, way: _Way, steps: int) -> set[str]:
        for scope in module.scopes(node):
            if bound := module.bound(scope, name):
                return set().union(*(self._values(module, value, (*part, *way), steps - 1) for value, part in bound))
            if isinstance(scope, _Function) and not way and self._is_taken(module, scope, name):
                return set()
        folder, name = module.imports.get(name, ("", name))
        other = self._modules.get(self._file(folder)) if folder else None
        if other is None:
            raise NotUnderstood
        values = [value for value, part in other.bound(other.tree, name) if not part]
        if not values:
            raise NotUnderstood
        return set().union(*(self._values(other, value, way, steps - 1) for value in values))

    def _is_taken(self, module: _Module, function: _Function, name: str) -> bool:
        """Whether the name is a parameter; then the calls of the function are read too."""
        names = [argument.arg for argument in (*function.args.posonlyargs, *function.args.args)]
        if name not in names:
            return False
        owner, position = module.parents.get(function), names.index(name)
        if not isinstance(owner, ast.ClassDef):
            self._takers.setdefault((module.path, function.name), (position, name))
        elif function.name == "__init__":
            self._takers.setdefault((module.path, owner.name), (position - 1, name))
        else:
            self._takers.setdefault((_METHOD, function.name), (position - 1, name))
        return True
