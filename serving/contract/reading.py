"""Reads a JSON document into the frozen dataclass that declares it. Standard library only: clients read with it.

The same declaration gives the endpoint its OpenAPI document (docs/adr/0040-one-declaration-of-answers.md). What an
endpoint newer than its client adds is passed over.
"""

import dataclasses
import types
from collections.abc import Callable, Mapping
from enum import Enum
from functools import cache
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from kopt.serving.contract.common import SCHEMA, AnswerError

T = TypeVar("T")
Reader = Callable[[Any], Any]
_ABSENT = "absent"


def read_answer(kind: type[T], path: str, document: Mapping[str, Any]) -> T:
    """The answer of a path as ``kind``. Raises AnswerError, with the member, for anything else."""
    if document.get("schema") != SCHEMA:
        raise AnswerError(f"expected a {SCHEMA} document, got {str(document.get('schema'))[:40]!r}")
    declared: Any = kind
    try:
        answer: T = _reader(declared)(document)
    except _Unexpected as error:
        raise AnswerError(f"{path} answered something unexpected: {error}") from error
    return answer


def added_later(*, absent: Any) -> Any:
    """A member that is always sent, but not by the first endpoints: where it is missing, it is read as ``absent``."""
    return dataclasses.field(metadata={_ABSENT: absent})


class _Unexpected(ValueError):
    """Names the member and what was expected there. The path grows while the error passes the members around it."""

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self._problem, self._path = problem, ""

    def __str__(self) -> str:
        return (self._path or "the document") + self._problem

    def within(self, member: object) -> "_Unexpected":
        self._path = f"{member}.{self._path}" if self._path else str(member)
        return self


def _expected(value: Any, what: str) -> _Unexpected:
    return _Unexpected(f" is {str(value)[:40]!r}, {what}")


@cache
def _reader(kind: Any) -> Reader:
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return _union(arguments)
    if origin is tuple:
        return _tuple(_reader(arguments[0]))
    if origin in (dict, Mapping):
        return _map(*arguments)
    if origin is Literal:
        return _literal(arguments)
    if dataclasses.is_dataclass(kind):
        return _dataclass(kind)
    return _enum(kind) if issubclass(kind, Enum) else _plain((kind,))


def _union(kinds: tuple[Any, ...]) -> Reader:
    """``X | None`` or plain types; other unions are not declared."""
    some = tuple(kind for kind in kinds if kind is not types.NoneType)
    read = _reader(some[0]) if len(some) == 1 else _plain(some)
    return read if len(some) == len(kinds) else lambda value: None if value is None else read(value)


def _tuple(read: Reader) -> Reader:
    def items(value: Any) -> Any:
        if not isinstance(value, list):
            raise _expected(value, "expected list")
        result = []
        for item in value:
            try:
                result.append(read(item))
            except _Unexpected as error:
                raise error.within(len(result)) from None
        return tuple(result)

    return items


def _map(key_of: Callable[[str], Any], kind: Any) -> Reader:
    read = _reader(kind)

    def members(value: Any) -> Any:
        if not isinstance(value, dict):
            raise _expected(value, "expected dict")
        result = {}
        for key, item in value.items():
            try:
                result[key_of(key)] = read(item)
            except _Unexpected as error:
                raise error.within(key) from None
        return result

    return members


def _literal(accepted: tuple[Any, ...]) -> Reader:
    def read(value: Any) -> Any:
        if value not in accepted:
            raise _expected(value, f"expected {' or '.join(map(repr, accepted))}")
        return value

    return read


def _dataclass(kind: Any) -> Reader:
    hints = get_type_hints(kind)
    fields = dataclasses.fields(kind)
    members = [(field.name, _reader(hints[field.name]), _is_required(field)) for field in fields]
    absent = {field.name: field.metadata[_ABSENT] for field in fields if _ABSENT in field.metadata}

    def read(value: Any) -> Any:
        if not isinstance(value, dict):
            raise _expected(value, "expected dict")
        result = dict(absent)
        for name, read_member, required in members:
            if name in value:
                try:
                    result[name] = read_member(value[name])
                except _Unexpected as error:
                    raise error.within(name) from None
            elif required:
                raise _Unexpected(" is missing").within(name)
        try:
            return kind(**result)
        except ValueError as error:
            raise _Unexpected(f": {error}") from error

    return read


def _is_required(field: "dataclasses.Field[Any]") -> bool:
    has_default = field.default is not dataclasses.MISSING or field.default_factory is not dataclasses.MISSING
    return not has_default and _ABSENT not in field.metadata


def _enum(kind: type[Enum]) -> Reader:
    def read(value: Any) -> Any:
        try:
            return kind(value)
        except (ValueError, TypeError):
            raise _expected(value, f"which is no {kind.__name__}") from None

    return read


def _plain(kinds: tuple[Any, ...]) -> Reader:
    """Numbers, text, booleans or lists. JSON has one kind of number: a whole one is a float as well, but true is no
    number. What is in a list is taken as it is."""
    kinds = tuple(get_origin(kind) or kind for kind in kinds)
    accepted, names = (*kinds, int) if float in kinds else kinds, " or ".join(kind.__name__ for kind in kinds)
    converted = kinds[0] if len(kinds) == 1 else lambda value: value

    def read(value: Any) -> Any:
        if type(value) in kinds:
            return value
        if not isinstance(value, accepted) or isinstance(value, bool):
            raise _expected(value, f"expected {names}")
        return converted(value)

    return read
