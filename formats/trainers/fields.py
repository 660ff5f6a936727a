"""Typed reading of a trainer's settings, from a mapping or from words of a command line."""

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from kopt.core.reason import Reason
from kopt.core.workload.training_plan import PlanError

_MAX_ENTRIES, _MAX_WORD = 5_000, 20_000
_TRUE, _FALSE = {"true", "1", "yes", "on", "y"}, {"false", "0", "no", "off", "n", "none", "null"}
_OPTION, _SETTING = re.compile(r"--?[A-Za-z_]"), re.compile(r"[+~]{0,2}[A-Za-z_][\w.]*=")
_WHOLE = re.compile(r"-?\d{1,18}")


def settings_of_arguments(tokens: Sequence[str]) -> dict[str, Any]:
    """``--micro-batch-size 4 --bf16 lr=0.1`` as a mapping; a name without value is True; later ones win.

    Words that belong to no option are kept in order under "" (a configuration's name, a model).
    """
    if len(tokens) > _MAX_ENTRIES:
        raise PlanError(f"more than {_MAX_ENTRIES:,} arguments; give those of the trainer only")
    result: dict[str, Any] = {"": []}
    at = 0
    while at < len(tokens):
        word = tokens[at]
        at += 1
        if _OPTION.match(word):
            name, equals, value = word.lstrip("-").partition("=")
            values = [value] if equals else []
            while not equals and at < len(tokens) and not (_OPTION.match(tokens[at]) or _SETTING.match(tokens[at])):
                values.append(tokens[at])
                at += 1
            result[key(name)] = True if not values else values[0] if len(values) == 1 else values
        elif _SETTING.match(word):
            name, _, value = word.lstrip("+~").partition("=")
            result[key(name)] = value
        else:
            result[""].append(word)
    return result


def key(name: str) -> str:
    """Names without leading dashes, ``-`` as ``_``; case is kept (``-pp`` is not ``-PP``)."""
    return name.lstrip("-").replace("-", "_")


class Fields:
    """One trainer's settings. What is read and absent can be noted as an assumption (``assume``)."""

    def __init__(self, settings: Mapping[str, Any], *others: Mapping[str, Any]) -> None:
        """Later mappings win: a file first, then the command line."""
        self._values: dict[str, Any] = {}
        for item in (settings, *others):
            if len(item) > _MAX_ENTRIES:
                raise PlanError(f"more than {_MAX_ENTRIES:,} settings; give the trainer's own only")
            self._values |= {key(str(name)): value for name, value in item.items()}
        self.unknown: list[Reason] = []

    def assume(self, name: str, message: str) -> None:
        """Notes that ``name`` was not given and what was taken instead."""
        self.unknown.append(Reason("ASSUMED", message, {"setting": name}))

    def names(self) -> list[str]:
        """Of all that is given, as it is written: nested mappings by their first name."""
        return list(self._values)

    def has(self, *names: str) -> bool:
        return any(self.raw(name) is not None for name in names)

    def raw(self, *names: str) -> Any:
        """The first of ``names`` that is given, None where none is. A dotted name looks into nested mappings."""
        for name in names:
            value = self._values.get(name)
            if value is None and "." in name:
                value = self._nested(name)
            if value is not None:
                return value
        return None

    def _nested(self, name: str) -> Any:
        value: Any = self._values
        for part in name.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        return value

    def text(self, *names: str, default: str = "") -> str:
        """One word; the first of a list.

        Raises:
            PlanError: a mapping, nested lists or a word of megabytes: no option has such a value.
        """
        value = self.raw(*names)
        if isinstance(value, list):
            value = value[0] if value else None
        return default if value is None else _word(names[0], value).strip()

    def whole(self, *names: str, default: int | None = None) -> int:
        """A whole number of at least zero.

        Raises:
            PlanError: absent without a default, or no such number.
        """
        value = self.raw(*names)
        if value is None or value == "auto":
            if default is None:
                raise PlanError(f"{names[0]} is not given; it decides the memory, so give it")
            return default
        value = value[-1] if isinstance(value, list) and value else value
        text = _word(names[0], value).strip()
        number = text.replace("_", "").removesuffix(".0")
        if isinstance(value, bool) or not _WHOLE.fullmatch(number) or number.startswith("-"):
            raise PlanError(f"{names[0]} must be a whole number, not {text[:40]!r}")
        return int(number)

    def real(self, *names: str, default: float) -> float:
        value = self.raw(*names)
        if value is None or value == "auto":
            return default
        text = _word(names[0], value)
        try:
            number = float(text)
        except ValueError:
            number = math.nan
        if not -1e15 < number < 1e15:
            raise PlanError(f"{names[0]} must be a number, not {text[:40]!r}")
        return number

    def flag(self, *names: str, default: bool = False) -> bool:
        value = self.raw(*names)
        if value is None:
            return default
        if isinstance(value, list | Mapping):
            return bool(value)
        text = _word(names[0], value).strip().lower()
        if text in _TRUE or text in _FALSE or text == "auto":
            return text in _TRUE
        return default if text == "" else True

    def part(self, *names: str) -> "Fields":
        """The settings below a name; also where they are given as JSON text."""
        value = self.raw(*names)
        if isinstance(value, str) and value.startswith("{"):
            try:
                value = json.loads(value)
            except (ValueError, RecursionError):
                raise PlanError(f"{names[0]} is not valid JSON") from None
        return Fields(value if isinstance(value, Mapping) else {})

    def positional(self) -> list[str]:
        """Words that belong to no option, in order. Raises PlanError where they are no words."""
        value = self._values.get("")
        return [_word("the command", part) for part in value[:_MAX_ENTRIES]] if isinstance(value, list) else []

    def name_list(self, *names: str) -> list[str]:
        """A list of names, given as a list, as ``a,b`` or as ``[a, b]``."""
        value = self.raw(*names)
        if value is None:
            return []
        if isinstance(value, list):
            if len(value) > _MAX_ENTRIES:
                raise PlanError(f"{names[0]} has more than {_MAX_ENTRIES:,} entries")
            parts = [_word(names[0], part) for part in value]
        else:
            parts = re.split(r"[,\s]+", _word(names[0], value).strip("[]() "))
        return [part.strip("'\" ") for part in parts if part.strip("'\" ")]


def _word(name: str, value: Any) -> str:
    """A scalar as text. Nested values are not written out: a few aliases of YAML can stand for gigabytes."""
    if isinstance(value, str):
        if len(value) > _MAX_WORD or "\0" in value:
            raise PlanError(
                f"{name} is no setting: {len(value):,} characters{', a NUL among them' * (chr(0) in value)}"
            )
        return value
    if value is None or isinstance(value, bool | float):
        return str(value)
    if isinstance(value, int):
        return str(value) if abs(value) < 1 << 64 else "a number of more than 64 bits"
    if isinstance(value, list | Mapping):
        raise PlanError(
            f"{name} must be one value, not a {'list' if isinstance(value, list) else 'mapping'} of several"
        )
    return str(value)[:_MAX_WORD]
