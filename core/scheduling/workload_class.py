"""The classes of workloads and what follows from each, as one table (workload_classes.toml).

Reading a resource of this package is the only I/O: the file is part of the code, the same on every machine.
"""

import functools
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from difflib import get_close_matches
from enum import StrEnum
from importlib import resources
from typing import Any

RULE_CODES = ("KIND", "TERMINAL", "NOTEBOOK", "ANSWERS", "RULE")
"""Which reason code a rule gives, after ``CLASS_``; RULE where it says nothing."""


class WorkloadClass(StrEnum):
    """What a workload is for."""

    INTERACTIVE = "interactive"
    UNATTENDED = "unattended"
    INFERENCE = "inference"


class ClassPlacement(StrEnum):
    """``PACK``: fill nodes. ``SPREAD``: replicas of one owner on different nodes."""

    PACK = "pack"
    SPREAD = "spread"


@dataclass(frozen=True)
class ClassTraits:
    """What follows from a class; the fields are explained in workload_classes.toml. Times are seconds."""

    preemptible: bool
    placement: ClassPlacement
    idle_s: int
    queue_points: float
    checkpoint: bool
    means: str = ""
    also: tuple[str, ...] = ()


@dataclass(frozen=True)
class ClassRule:
    """A class for what all conditions hold of; a condition that is empty or False is none."""

    workload_class: WorkloadClass
    code: str = "RULE"
    kinds: frozenset[str] = frozenset()
    unless_owned_by: frozenset[str] = frozenset()
    images: frozenset[str] = frozenset()
    commands: frozenset[str] = frozenset()
    ports: frozenset[str] = frozenset()
    terminal: bool = False
    answers: bool = False
    stays: bool = False

    def __post_init__(self) -> None:
        conditions = (self.kinds, self.images, self.commands, self.ports, self.terminal, self.answers, self.stays)
        if not any(conditions):
            raise ValueError(f"a rule for {self.workload_class} without a condition would hold for everything")


@dataclass(frozen=True, eq=False)
class ClassTable:
    """``rules`` in the order in which they are tried; what none holds for is unattended. Equal to itself alone, so that
    answers by it can be kept."""

    traits: Mapping[WorkloadClass, ClassTraits]
    rules: tuple[ClassRule, ...] = ()
    classes_by_name: Mapping[str, WorkloadClass] = field(default_factory=dict)
    """Classes by all words for them."""

    def of(self, workload_class: WorkloadClass) -> ClassTraits:
        return self.traits[workload_class]

    def named(self, word: str) -> WorkloadClass | None:
        """The class that somebody means by a word; None for none."""
        return self.classes_by_name.get(word.strip().lower())

    def nearest(self, word: str) -> str:
        """The word most like one that is none; empty without any."""
        return next(iter(get_close_matches(word.strip().lower(), self.classes_by_name, 1)), "")

    def overridden(self, document: Mapping[str, Any]) -> "ClassTable":
        """With ``classes`` replaced field by field, and ``rules`` before its own. Raises ValueError, which names the
        field, for what cannot be meant."""
        if unknown := sorted(set(document) - {"classes", "rules"}):
            raise ValueError(f"{unknown[0]}: there are classes and rules")
        traits = dict(self.traits)
        for name, changes in _table(document.get("classes"), "classes").items():
            workload_class = _class(name, "classes")
            traits[workload_class] = _traits(_table(changes, f"classes.{name}"), traits[workload_class], name)
        rules = document.get("rules") or []
        if not isinstance(rules, list):
            raise ValueError("rules: a list is expected")
        own = tuple(_rule(_table(rule, f"rules[{number}]"), number) for number, rule in enumerate(rules))
        return replace(self, traits=traits, rules=(*own, *self.rules), classes_by_name=_classes_by_name(traits))


@functools.cache
def default_classes() -> ClassTable:
    """The table as it is shipped."""
    text = resources.files("kopt.core.scheduling").joinpath("workload_classes.toml").read_text(encoding="utf-8")
    document = tomllib.loads(text)
    blank = ClassTraits(preemptible=False, placement=ClassPlacement.PACK, idle_s=0, queue_points=0.0, checkpoint=False)
    return ClassTable(dict.fromkeys(WorkloadClass, blank)).overridden(document)


def _classes_by_name(traits: Mapping[WorkloadClass, ClassTraits]) -> dict[str, WorkloadClass]:
    """A class's own name always means it, whatever other words say."""
    also = {word.lower(): workload_class for workload_class, trait in traits.items() for word in trait.also}
    return also | {str(workload_class): workload_class for workload_class in traits}


def _traits(changes: Mapping[str, Any], before: ClassTraits, name: str) -> ClassTraits:
    expected = {item.name: type(getattr(before, item.name)) for item in fields(before)}
    result: dict[str, Any] = {}
    for key, value in changes.items():
        where = f"classes.{name}.{key}"
        if key not in expected:
            raise ValueError(f"{where}: there are {', '.join(expected)}")
        if key == "placement":
            result[key] = _placement(value, where)
        elif key == "also":
            result[key] = tuple(_texts(value, where))
        elif key in ("idle_s", "queue_points"):
            result[key] = expected[key](_number(value, where))
        elif not isinstance(value, expected[key]):
            raise ValueError(f"{where}: {value!r} is no {expected[key].__name__}")
        else:
            result[key] = value
    return replace(before, **result)


def _rule(document: Mapping[str, Any], number: int) -> ClassRule:
    where = f"rules[{number}]"
    types = {item.name: item.type for item in fields(ClassRule)[1:]}
    if unknown := sorted(set(document) - {"class", *types}):
        raise ValueError(f"{where}.{unknown[0]}: there are class, {', '.join(types)}")
    result: dict[str, Any] = {}
    for key in set(document) & set(types):
        value = document[key]
        if key == "code":
            if value not in RULE_CODES:
                raise ValueError(f"{where}.code: {value!r} is none of {', '.join(RULE_CODES)}")
            result[key] = value
        elif key in ("terminal", "answers", "stays"):
            if not isinstance(value, bool):
                raise ValueError(f"{where}.{key}: {value!r} is not true or false")
            result[key] = value
        else:
            result[key] = frozenset(_texts(value, f"{where}.{key}"))
    try:
        return ClassRule(_class(document.get("class"), f"{where}.class"), **result)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error


def _class(value: object, where: str) -> WorkloadClass:
    try:
        return WorkloadClass(str(value))
    except ValueError:
        raise ValueError(f"{where}: {value!r} is no class; there are {', '.join(WorkloadClass)}") from None


def _placement(value: object, where: str) -> ClassPlacement:
    try:
        return ClassPlacement(str(value))
    except ValueError:
        raise ValueError(f"{where}: {value!r} is not {' or '.join(ClassPlacement)}") from None


def _number(value: object, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1e9:
        raise ValueError(f"{where}: {value!r} is no number from 0 to 1e9")
    return value


def _texts(value: object, where: str) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(item, str | int) for item in value):
        raise ValueError(f"{where}: a list of words is expected")
    return [str(item) for item in value]


def _table(value: object, where: str) -> Mapping[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ValueError(f"{where}: a table is expected")
    return value
