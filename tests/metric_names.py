"""Names of metrics: in expressions of PromQL, and in what an endpoint shows to Prometheus."""

import re
from collections.abc import Iterator

from prometheus_client.parser import text_string_to_metric_families

_STRINGS = re.compile(r'"(?:[^"\\]|\\.)*"')
_GROUPS = re.compile(r"\b(by|without|on|ignoring|group_left|group_right)\s*\([^)]*\)")
_SELECTORS = re.compile(r"\{[^}]*\}|\[[^\]]*\]")
_NAMES = re.compile(r"(?<![\w:.$])([A-Za-z_:][\w:]*)\b(?!\s*\()")
_WORDS = frozenset(["and", "or", "unless", "by", "without", "on", "ignoring", "bool", "offset"])
_SUFFIXES = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count"), "summary": ("", "_sum", "_count")}


def named_in(expr: str) -> set[str]:
    """The metrics that an expression reads."""
    bare = _SELECTORS.sub("", _GROUPS.sub("", _STRINGS.sub('""', expr)))
    return set(_NAMES.findall(bare)) - _WORDS


def shown_in(text: str) -> set[str]:
    """The metrics of an exposition, also those that have no sample yet."""
    return set(_shown(text))


def _shown(text: str) -> Iterator[str]:
    for family in text_string_to_metric_families(text):
        for suffix in _SUFFIXES.get(family.type, ("",)):
            yield family.name + suffix
