"""CEL from plain values: literals, patterns, and what a pod says about the nodes that it may run on.

Only what every CEL interpreter has is used, so that an expression means the same in the API server and offline.
"""

from collections.abc import Iterable, Mapping, Sequence

_SPECIAL = frozenset(r".+()[]{}^$|?\\")
NEVER = "false"


def literal(text: str) -> str:
    """A CEL string of any text."""
    return "'" + "".join(_character(character) for character in text) + "'"


def _character(character: str) -> str:
    if character in "'\\":
        return "\\" + character
    if character.isascii() and character.isprintable():
        return character
    code = ord(character)
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def listed(values: Iterable[str]) -> str:
    return "[" + ", ".join(literal(value) for value in values) + "]"


def mapped(values: Mapping[str, str]) -> str:
    return "{" + ", ".join(f"{literal(key)}: {literal(value)}" for key, value in sorted(values.items())) + "}"


def glob(pattern: str) -> str:
    """The regular expression (RE2) of a glob over the whole text."""
    return "^" + "".join(".*" if c == "*" else f"\\{c}" if c in _SPECIAL else c for c in pattern) + "$"


def matches_any(value: str, expressions: Sequence[str]) -> str:
    """Whether the CEL ``value`` matches one of the regular expressions."""
    return either(f"{value}.matches({literal(expression)})" for expression in expressions)


def either(expressions: Iterable[str]) -> str:
    """Any of them; of none: false."""
    parts = [f"({expression})" for expression in expressions]
    return " || ".join(parts) or NEVER


def both(expressions: Iterable[str]) -> str:
    """All of them; of none: true."""
    parts = [f"({expression})" for expression in expressions]
    return " && ".join(parts) or "true"


def present(path: str) -> str:
    """Whether every step of ``root.step.step`` behind the root is there."""
    root, *steps = path.split(".")
    tested, result = root, []
    for step in steps:
        tested += f".{step}"
        result.append(f"has({tested})")
    return " && ".join(result)


def bound_to(keys: Sequence[str], test: str) -> str:
    """Whether a pod can only run on nodes of which one of the labels ``keys`` passes ``test``, CEL over ``v``.

    That is by its node selector, or by each alternative of its required node affinity.
    """
    wanted = f"{listed(keys)}.exists(k, k in variables.selector && [variables.selector[k]].all(v, {test}))"
    expression = f"e.key in {listed(keys)} && e.operator == 'In' && has(e.values) && e.values.all(v, {test})"
    terms = (
        "size(variables.terms) > 0 && variables.terms.all(t, has(t.matchExpressions) && "
        f"t.matchExpressions.exists(e, {expression}))"
    )
    return either((wanted, terms))
