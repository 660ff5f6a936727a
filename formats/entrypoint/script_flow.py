"""Which calls of a Python source run whatever happens, and which of them make the model that is trained."""

import ast
import re
from collections import Counter
from collections.abc import Iterator

from kopt.formats.entrypoint.script_options import called_name, stored_names

Guards = tuple[ast.expr | None, ...]
"""Conditions that a call depends on; None for one that is no expression (a loop, a function that nobody calls)."""
_TRAINERS = re.compile(r"\w*Trainer")
_MODELS = re.compile(r"Model|LM\b")
_MOST_STEPS = 2_000


class Flow:
    """``guards`` of a call: empty where it surely runs. ``trained`` are the calls that load what a trainer gets."""

    def __init__(self, tree: ast.Module) -> None:
        self._functions: dict[str, list[ast.FunctionDef | ast.AsyncFunctionDef]] = {}
        self._values: dict[str, list[ast.expr]] = {}
        self._guards: dict[ast.AST, Guards] = {}
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                self._functions.setdefault(node.name, []).append(node)
            elif isinstance(node, ast.Assign):
                for target in node.targets:
                    for each in target.elts if isinstance(target, ast.Tuple | ast.List) else (target,):
                        if isinstance(each, ast.Name):
                            self._values.setdefault(each.id, []).append(node.value)
        self._set = Counter(stored_names(tree))
        self._entered: dict[str, Guards] = {}
        pending: list[tuple[list[ast.stmt], Guards]] = [(tree.body, ())]
        while pending:
            body, guards = pending.pop(0)
            pending.extend(self._block(body, guards))
        self.trained = self._trained(tree)

    def guards(self, node: ast.AST) -> Guards:
        return self._guards.get(node, (None,))

    def values(self, name: str) -> list[ast.expr]:
        """All that a name is set to, in the whole source."""
        return self._values.get(name, [])

    def _block(self, body: list[ast.stmt], guards: Guards) -> Iterator[tuple[list[ast.stmt], Guards]]:
        """Notes the calls of a block; gives the bodies of functions that it calls."""
        for node in body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                continue
            if isinstance(node, ast.If):
                yield from self._note(node.test, guards)
                decided = _is_main(node.test) or self._decided(node.test)
                yield from self._block(node.body, guards if decided else (*guards, node.test))
                yield from self._block(node.orelse, (*guards, None))
                if decided is not False and any(
                    isinstance(each, ast.Return | ast.Continue | ast.Break) for each in ast.walk(node)
                ):
                    guards = guards if None in guards else (*guards, None)
            elif isinstance(node, ast.With | ast.AsyncWith):
                for each in node.items:
                    yield from self._note(each.context_expr, guards)
                yield from self._block(node.body, guards)
            elif isinstance(node, ast.For | ast.While | ast.AsyncFor | ast.Try | ast.TryStar | ast.Match):
                yield from self._note(node, (*guards, None))
            else:
                yield from self._note(node, guards)

    def _decided(self, test: ast.expr) -> bool | None:
        """What a condition on one literal says (``USE_8_BIT is True``); None where only running it would tell."""
        if isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], ast.Is | ast.Eq):
            other = test.comparators[0]
            decided = self._decided(test.left)
            return decided if isinstance(other, ast.Constant) and other.value is True else None
        if isinstance(test, ast.Name) and self._set[test.id] == 1 and len(values := self.values(test.id)) == 1:
            return (
                values[0].value if isinstance(values[0], ast.Constant) and isinstance(values[0].value, bool) else None
            )
        return None

    def _note(self, node: ast.AST, guards: Guards) -> Iterator[tuple[list[ast.stmt], Guards]]:
        pending: list[tuple[ast.AST, Guards]] = [(node, guards)]
        while pending:
            each, over = pending.pop()
            if isinstance(each, ast.Call):
                self._guards[each] = over
                fired = called_name(each.func) == "Fire" and each.args
                name = called_name(each.args[0]) if fired else each.func.id if isinstance(each.func, ast.Name) else ""
                # The first way in counts, and a surer one after it.
                if name in self._functions and (name not in self._entered or (self._entered[name] and not over)):
                    self._entered[name] = over
                    for function in self._functions[name]:
                        yield function.body, over
            if isinstance(each, ast.IfExp):
                pending += [(each.test, over), (each.body, (*over, each.test)), (each.orelse, (*over, None))]
            elif isinstance(each, ast.BoolOp):
                pending += [(value, (*over, None) if at else over) for at, value in enumerate(each.values)]
            else:
                later = isinstance(
                    each,
                    ast.Lambda
                    | ast.ListComp
                    | ast.SetComp
                    | ast.DictComp
                    | ast.GeneratorExp
                    | ast.FunctionDef
                    | ast.AsyncFunctionDef
                    | ast.ClassDef,
                )
                pending += [(child, (*over, None) if later else over) for child in ast.iter_child_nodes(each)]

    def _trained(self, tree: ast.Module) -> list[ast.Call] | None:
        """The calls that load the model that a trainer gets; None where the source does not say which."""
        calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
        given = [
            model
            for node in calls
            if _TRAINERS.fullmatch(called_name(node.func))
            and (model := keyword(node, "model") or (node.args[0] if node.args else None)) is not None
        ]
        if not given:
            loads = [node for node in calls if loads_model(node)]
            return loads if len(loads) == 1 else None
        return self._made_by(given) or None

    def _made_by(self, given: list[ast.expr]) -> list[ast.Call]:
        made: dict[ast.Call, None] = {}
        pending: list[ast.expr] = list(given)
        visited: set[ast.expr | str] = set()
        for _ in range(_MOST_STEPS):
            if not pending:
                break
            node = pending.pop()
            if node in visited:
                continue
            visited.add(node)
            if isinstance(node, ast.Name):
                pending += self.values(node.id) if f"={node.id}" not in visited else []
                visited.add(f"={node.id}")
            elif isinstance(node, ast.Tuple | ast.List):
                pending += node.elts
            elif isinstance(node, ast.IfExp):
                pending += [node.body, node.orelse]
            elif isinstance(node, ast.Call):
                if loads_model(node):
                    made[node] = None
                    continue
                if isinstance(node.func, ast.Name) and node.func.id not in visited:
                    visited.add(node.func.id)
                    pending += self._returned(node.func.id)
                elif isinstance(node.func, ast.Attribute):
                    pending.append(node.func.value)
                model = keyword(node, "model") or (node.args[0] if node.args else None)
                pending += [model] if model is not None else []
        return list(made)

    def _returned(self, name: str) -> list[ast.expr]:
        return [
            each.value
            for function in self._functions.get(name, ())
            for each in ast.walk(function)
            if isinstance(each, ast.Return) and each.value is not None
        ]


def keyword(node: ast.Call, name: str) -> ast.expr | None:
    return next((word.value for word in node.keywords if word.arg == name), None)


def loads_model(node: ast.Call) -> bool:
    """``AutoModelForCausalLM.from_pretrained(…)``; PEFT's wraps one that is loaded."""
    if called_name(node.func) != "from_pretrained" or not isinstance(node.func, ast.Attribute):
        return False
    owner = called_name(node.func.value)
    return _MODELS.search(owner) is not None and not owner.startswith(("Peft", "AutoPeft"))


def _is_main(test: ast.expr) -> bool:
    return isinstance(test, ast.Compare) and isinstance(test.left, ast.Name) and test.left.id == "__name__"
