"""Reads a JSON document into the frozen dataclass that declares it. Standard library only: clients read with it.

The same declaration gives the endpoint its OpenAPI document (docs/adr/0040-one-declaration-of-answers.md). What an
endpoint newer than its client adds is passed over.
"""

import dataclasses
import types
from collections.abc import Mapping
from enum import Enum
from functools import cache
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from kopt.serving.contract.common import SCHEMA, AnswerError

T = TypeVar("T")


def read_answer(kind: type[T], path: str, document: Mapping[str, Any]) -> T:
    """The answer of a path as ``kind``. Raises AnswerError, with the member, for anything else."""
    if document.get("schema") != SCHEMA:
        raise AnswerError(f"expected a {SCHEMA} document, got {str(document.get('schema'))[:40]!r}")
    try:
        answer: T = _read(kind, document, "")
    except _Unexpected as error:
        raise AnswerError(f"{path} answered something unexpected: {error}") from error
    return answer


class _Unexpected(ValueError):
    """The message names the member and what was expected there."""


@cache
def _hints(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind)


def _read(kind: Any, value: Any, member: str) -> Any:
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return _optional(arguments, value, member)
    if origin is tuple:
        return tuple(_read(arguments[0], item, f"{member}.{i}") for i, item in enumerate(_of(list, value, member)))
    if origin in (dict, Mapping):
        members = _of(dict, value, member).items()
        return {str(key): _read(arguments[1], item, f"{member}.{key}") for key, item in members}
    if origin is Literal:
        if value not in arguments:
            raise _Unexpected(f"{member[1:]} is {str(value)[:40]!r}, expected {arguments[0]!r}")
        return value
    if dataclasses.is_dataclass(kind):
        return _fields(kind, _of(dict, value, member), member)
    if issubclass(kind, Enum):
        return _enum(kind, value, member)
    # JSON has one kind of number; a whole one is a float as well, but true is no number.
    accepted = (int, float) if kind is float else (kind,)
    if not isinstance(value, accepted) or (isinstance(value, bool) and kind is not bool):
        raise _Unexpected(f"{member[1:]} is {str(value)[:40]!r}, expected {kind.__name__}")
    return kind(value)


def _optional(kinds: tuple[Any, ...], value: Any, member: str) -> Any:
    """``X | None``; other unions are not declared."""
    if value is None and type(None) in kinds:
        return None
    (kind,) = (kind for kind in kinds if kind is not type(None))
    return _read(kind, value, member)


def _fields(kind: Any, value: Mapping[str, Any], member: str) -> Any:
    hints, result = _hints(kind), {}
    for field in dataclasses.fields(kind):
        if field.name in value:
            result[field.name] = _read(hints[field.name], value[field.name], f"{member}.{field.name}")
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise _Unexpected(f"{member}.{field.name}"[1:] + " is missing")
    try:
        return kind(**result)
    except ValueError as error:
        raise _Unexpected(f"{member[1:]}: {error}") from error


def _enum(kind: type[Enum], value: Any, member: str) -> Enum:
    try:
        return kind(value)
    except (ValueError, TypeError):
        raise _Unexpected(f"{member[1:]} is {str(value)[:40]!r}, which is no {kind.__name__}") from None


def _of(kind: type[T], value: Any, member: str) -> T:
    if not isinstance(value, kind):
        raise _Unexpected(f"{member[1:] or 'the document'} is {str(value)[:40]!r}, expected {kind.__name__}")
    return value
