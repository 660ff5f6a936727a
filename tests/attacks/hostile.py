"""What people may write onto objects, as property tests draw it.

Keys of annotations and labels are read from the product's code, and fields of custom resources from the chart's
schemas, so that what is added later is drawn too.
"""

import ast
import copy
import json
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from hypothesis import strategies as st

from kopt.cluster.client.resources import Object

ROOT = Path(__file__).parents[2]
READERS = ("core", "cluster", "controllers", "agents", "policies", "dashboard")
_KEY = re.compile(r"([a-z0-9-]+(\.[a-z0-9-]+)+|runai)/[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
_BARE = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)+")
_FIELD = re.compile(r"[a-z][A-Za-z_]{1,30}")
_KEYED = ("ANNOTATION", "LABEL", "NOTE", "QUEUE", "GANG", "_DEVICES")
Path_ = tuple[str | int, ...]
Change = tuple[Path_, Any]


@cache
def _constants() -> tuple[frozenset[str], frozenset[str], frozenset[str]]:
    """(keys, field names, other words) that stand in the code of whoever reads objects."""
    keys, fields, words = set[str](), set[str](), set[str]()
    for path in (path for room in READERS for path in sorted((ROOT / room).rglob("*.py"))):
        tree = ast.parse(path.read_text())
        keys |= set(_bare_keys(tree))
        for text in (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)):
            if not isinstance(text, str):
                continue
            if _KEY.fullmatch(text):
                keys.add(text)
            elif _FIELD.fullmatch(text):
                fields.add(text)
            elif 1 < len(text) < 30 and text.isprintable():
                words.add(text)
    return frozenset(keys), frozenset(fields), frozenset(words)


def _bare_keys(tree: ast.AST) -> Iterator[str]:
    """Keys without a domain, by the names of the constants that hold them."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and any(
            isinstance(name, ast.Name) and any(part in name.id for part in _KEYED) for name in node.targets
        ):
            for inner in ast.walk(node.value):
                if isinstance(inner, ast.Constant) and isinstance(inner.value, str) and _BARE.fullmatch(inner.value):
                    yield inner.value


KEYS = sorted(_constants()[0])
FIELDS = sorted(_constants()[1])
OURS = [key for key in KEYS if key.startswith("kaiwo.ai/")]

NUMBERS = [
    0,
    -0.0,
    1,
    -1,
    0.5,
    3,
    7,
    2**31 - 1,
    2**31,
    -(2**31),
    2**53,
    2**63 - 1,
    -(2**63),
    1e18,
    1e300,
    -1e300,
    1e-300,
    1.7976931348623157e308,
    True,
    False,
]
RAW = [
    "1e999",
    "-1e999",
    "NaN",
    "Infinity",
    "1" * 400,
    "1" * 5000,
    '"\\ud800"',
    "[" * 3000 + "]" * 3000,
    '{"a":' * 200 + "1" + "}" * 200,
    "null",
    "[]",
    "{}",
    '""',
    '"x"',
    "1.0",
    "-1",
]
"""JSON that ``json.dumps`` would not write."""
TIMES = [
    "0001-01-01T00:00:00Z",
    "9999-12-31T23:59:59Z",
    "9999-12-31T23:59:59-23:59",
    "0001-01-01T00:00:00+23:59",
    "1970-01-01T00:00:00Z",
    "2099-01-01T00:00:00Z",
    "2026-11-23T12:00:00",
    "2026-11-23",
    "20261123T120000Z",
    "2026-11-23T12:00:00.123456789Z",
    "2026-11-23T12:00:00Z",
]
TEXTS = [
    "",
    " ",
    "0",
    "-1",
    "1",
    "true",
    "false",
    "nan",
    "inf",
    "-inf",
    "1e999",
    "1_000",
    "٣",
    "²",
    "0x10",
    "1" * 5000,
    "-",
    "1-2",
    "inf-inf",
    "nan-nan",
    "2-1-",
    ",",
    ",,,",
    "a,b",
    "\n",
    "a\nb",
    "\x00",
    "\u202e",
    "💥" * 50,
    "x" * 70_000,
    "{",
    "[]",
    "null",
    '"',
    "1e3",
    "1k",
    "9Ei",
    "1E18",
    "999999999999999999999",
    "0.000000001",
    "1e-30",
    "1m",
    "5m",
    "9999d",
    "../..",
    "s3://b/x -> pvc://claim/x",
    "hf://a/b -> pvc://c/d\n" * 200,
    "s3://[::1 -> pvc://c/d",
    "https://u:p@h:99999/x -> pvc://c/d",
    "enforce",
    "annotate",
    "observe",
    "ENFORCE",
    "profiling",
    "staging",
    "preemption",
    "lending",
    "someone",
    "kopt-system/kopt-sizing/99999999999999",
    "a/b/c/9" * 50,
    "team/urgent",
    "/",
    "00-" + "0" * 32 + "-" + "0" * 16 + "-00",
    *TIMES,
]
QUANTITIES = [
    "0",
    "1",
    "-1",
    "8",
    "1k",
    "1e3",
    "9Ei",
    "1E18",
    "0.1",
    "1m",
    "999999999999999999999999",
    "1e300",
    "x",
    "",
]
LABELS = [
    "",
    "a",
    "true",
    "false",
    "profiling",
    "staging",
    "preemption",
    "lending",
    "0",
    "-1",
    "1" * 63,
    "x" * 63,
    "inf",
    "1e999",
    "kaiwo-held",
    "team",
    "9999999999",
    "99999999999999999999",
    "a-b.c_d",
    "enforce",
]

leaves = st.one_of(
    st.sampled_from(NUMBERS),
    st.sampled_from(TEXTS),
    st.none(),
    st.just([]),
    st.just({}),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=20),
    st.sampled_from(sorted(_constants()[2])),
)
trees = st.recursive(
    leaves,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.sampled_from(FIELDS), inner, max_size=6)),
    max_leaves=12,
)


def documents(example: Any = None) -> st.SearchStrategy[str]:
    """JSON as text: any, or an example of which some leaves are something else."""
    free = st.dictionaries(st.sampled_from(FIELDS), trees, max_size=8).map(_dumped)
    if example is None:
        return free | st.sampled_from(RAW)
    return st.one_of(changed(example).map(_dumped), raw_in(example), free)


def raw_in(example: Any) -> st.SearchStrategy[str]:
    """An example with JSON in the place of one leaf that no writer of ours would write."""
    marked = st.sampled_from(list(_leaves(example)) or [()]).map(lambda path: _dumped(put(example, path, "@@")))
    return st.builds(lambda text, raw: text.replace('"@@"', raw), marked, st.sampled_from(RAW))


def changed(example: Any) -> st.SearchStrategy[Any]:
    """An example of which one to three leaves, or whole branches, are something else."""
    places = [path for path in _branches(example) if path]
    one = st.tuples(st.sampled_from(places), leaves)

    def applied(changes: list[Change]) -> Any:
        found = example
        for path, value in changes:
            found = put(found, path, value)
        return found

    return st.lists(one, min_size=1, max_size=3).map(applied)


def put(document: Any, path: Path_, value: Any) -> Any:
    """A copy with a value at a path; what is in the way gives way."""
    if not path:
        return value
    step, rest = path[0], path[1:]
    if isinstance(step, int):
        items = list(document) if isinstance(document, list) else []
        return [*items[:step], put(items[step] if step < len(items) else None, rest, value), *items[step + 1 :]]
    found = dict(document) if isinstance(document, dict) else {}
    found[step] = put(found.get(step), rest, value)
    return found


def annotation_values(key: str, examples: Mapping[str, Any]) -> st.SearchStrategy[str]:
    example = examples.get(key)
    plain = st.sampled_from(TEXTS) | st.text(max_size=30)
    if isinstance(example, str):
        return st.one_of(st.just(example), plain, documents())
    return st.one_of(plain, documents(), documents(example), documents(example)) if example else plain | documents()


def hostile(
    base: Object,
    examples: Mapping[str, Any],
    keys: list[str],
    fixed: tuple[Path_, ...] = (),
    schema: Mapping[str, Any] | None = None,
) -> st.SearchStrategy[Object]:
    """A document with one to five changes: annotations, labels (its own, and those of its pods), fields of its spec and
    status. What lies at ``fixed`` paths stays: it would make the object compete with others as any may."""
    metadatas = [("metadata",), *[path for path in _branches(base) if path[-2:] == ("template", "metadata")]]
    metadatas += [(*path, "metadata") for path in _branches(base) if path[-1:] == ("template",)]
    notes = st.sampled_from(keys).flatmap(
        lambda key: st.tuples(
            st.sampled_from(metadatas).map(lambda at: (*at, "annotations", key)), annotation_values(key, examples)
        )
    )
    marks = st.tuples(
        st.tuples(st.sampled_from(metadatas), st.sampled_from(keys)).map(lambda both: (*both[0], "labels", both[1])),
        st.sampled_from(LABELS),
    )
    changes = [notes, notes, notes, marks]
    leaves_ = [path for path in _leaves(base) if path[0] in ("spec", "status") and not _starts(path, fixed)]
    if leaves_:
        changes.append(
            st.sampled_from(leaves_).flatmap(lambda path: st.tuples(st.just(path), _alike(_get(base, path))))
        )
    if schema is not None:
        changes += [_schema_changes(schema)] * 4

    def applied(found: list[Change]) -> Object:
        document: Any = copy.deepcopy(base)
        for path, value in found:
            document = put(document, path, value)
        return dict(document)

    return st.lists(st.one_of(*changes), min_size=1, max_size=5).map(applied)


@cache
def schema_of(plural: str) -> Mapping[str, Any]:
    """The schema of a custom resource, off the chart."""
    found = yaml.safe_load((ROOT / "deploy" / "chart" / "crds" / f"{plural}.yaml").read_text())
    return dict(found["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"])


def _schema_changes(schema: Mapping[str, Any]) -> st.SearchStrategy[Change]:
    paths = [(name, *path) for name in ("spec", "status") if name in schema for path in _schema_paths(schema[name])]
    return st.sampled_from(paths).flatmap(lambda path: st.tuples(st.just(path), _of_schema(_schema_at(schema, path))))


def _schema_paths(schema: Mapping[str, Any], depth: int = 0) -> Iterator[Path_]:
    yield ()
    if depth > 8:
        return
    for name, inner in (schema.get("properties") or {}).items():
        yield from ((name, *path) for path in _schema_paths(inner, depth + 1))
    if schema.get("type") == "array":
        yield from ((0, *path) for path in _schema_paths(schema["items"], depth + 1))


def _schema_at(schema: Mapping[str, Any], path: Path_) -> Mapping[str, Any]:
    found: Mapping[str, Any] = {"properties": schema}
    for step in path:
        found = found["items"] if isinstance(step, int) else found["properties"][step]
    return found


def _of_schema(schema: Mapping[str, Any], depth: int = 0) -> st.SearchStrategy[Any]:
    """Mostly what the schema allows, at its edges; sometimes what an older schema may have let in."""
    return st.one_of(_allowed(schema, depth), _allowed(schema, depth), _allowed(schema, depth), leaves)


def _allowed(schema: Mapping[str, Any], depth: int) -> st.SearchStrategy[Any]:
    if "enum" in schema:
        return st.sampled_from(list(schema["enum"]))
    match schema.get("type"):
        case "integer" | "number":
            low, high = schema.get("minimum", -(2**63)), schema.get("maximum", 2**63 - 1)
            inside = [one for one in (*NUMBERS, low, high) if not isinstance(one, bool) and low <= one <= high]
            if schema["type"] == "integer":
                inside = [one for one in inside if isinstance(one, int)]
            return st.sampled_from(inside or [low])
        case "boolean":
            return st.booleans()
        case "array":
            return st.lists(_of_schema(schema["items"], depth + 1), max_size=3) if depth < 4 else st.just([])
        case "object":
            known = schema.get("properties")
            if not known:
                return st.dictionaries(st.sampled_from(FIELDS), leaves, max_size=3)
            return (
                st.fixed_dictionaries(
                    {name: _of_schema(known[name], depth + 1) for name in schema.get("required") or () if name in known}
                )
                if depth < 4
                else st.just({})
            )
        case _:
            most = min(schema.get("maxLength", 60), 5000)
            return st.one_of(st.sampled_from(TEXTS), st.sampled_from(QUANTITIES), st.sampled_from(FIELDS)).map(
                lambda one: one[:most]
            )


def _alike(value: Any) -> st.SearchStrategy[Any]:
    """As API servers would take it in the place of a value: of its type, if of any size."""
    if isinstance(value, bool):
        return st.booleans()
    if isinstance(value, int):
        return st.sampled_from([0, 1, -1, 2**31 - 1, -(2**31), 2**63 - 1, 10**6])
    if isinstance(value, str):
        return st.one_of(st.sampled_from(TEXTS), st.sampled_from(QUANTITIES), documents())
    return leaves


def _dumped(document: Any) -> str:
    return json.dumps(document)


def _get(document: Any, path: Path_) -> Any:
    for step in path:
        document = document[step]
    return document


def _branches(document: Any, path: Path_ = ()) -> Iterator[Path_]:
    yield path
    pairs = (
        document.items() if isinstance(document, dict) else enumerate(document) if isinstance(document, list) else ()
    )
    for step, inner in pairs:
        yield from _branches(inner, (*path, step))


def _leaves(document: Any) -> Iterator[Path_]:
    yield from (path for path in _branches(document) if path and not isinstance(_get(document, path), dict | list))


def _starts(path: Path_, fixed: tuple[Path_, ...]) -> bool:
    return any(path[: len(one)] == one for one in fixed)
