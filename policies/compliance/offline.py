"""Judges pods that are there by the expressions that the API server has, with an interpreter of CEL beside it.

The interpreter is an extra of the package. Functions of Kubernetes' own libraries that it lacks, and that are not given
below, leave a pod not judged; nothing is taken to conform because it could not be evaluated.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from kopt.core.times import stamp
from kopt.core.workload.compliance import CompliancePolicy, Exemption, Judgement, Standing, Surroundings
from kopt.policies.compliance.compile import PODS, Object, exemption_expressions, validation, variables
from kopt.policies.compliance.rules import rules_of

_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "sum": lambda values: sum(values),
    "lowerAscii": lambda text: text.lower(),
    "upperAscii": lambda text: text.upper(),
    "trim": lambda text: text.strip(),
    "split": lambda text, by: text.split(by),
    "replace": lambda text, old, new: text.replace(old, new),
}
"""Of the list and string libraries of Kubernetes' CEL."""


class CelError(ValueError):
    """An expression that is no CEL; the message says which and where."""


@dataclass(frozen=True)
class _Check:
    program: Any
    message: str
    message_program: Any
    """A program for the message, or None."""


class OfflinePolicy:
    """A policy that is compiled once and judges many pods.

    Raises:
        CelError: an expression is no CEL.
        ModuleNotFoundError: the extra ``compliance`` is not installed.
    """

    def __init__(self, policy: CompliancePolicy, around: Surroundings) -> None:
        self.policy = policy
        named = [item for item in variables(policy, PODS, around) if item["name"] not in ("now", "exempt")]
        self._variables = [(item["name"], _program(item["expression"])) for item in named]
        self._exemptions: list[tuple[Exemption, Any]] = [
            (exemption, _program(expression)) for exemption, expression in exemption_expressions(policy)
        ]
        rules = rules_of(policy, around.gpu_resources)
        self._checks = [_check(validation(policy, rule)) for rule in rules]

    def evaluate(self, pod: Object, namespace: Object, now_s: float) -> Judgement:
        """How a pod stands, at a time in Unix seconds by which exemptions are still open or have ended."""
        activation = self._activation(pod, namespace, now_s)
        open_until = [exemption.until_s for exemption, program in self._exemptions if _run(program, activation) is True]
        activation["variables"]["exempt"] = False
        messages, unjudged = list[str](), list[str]()
        for check in self._checks:
            try:
                if check.program.execute(_context(activation)) is not True:
                    messages.append(_message(check, activation))
            except _EVALUATION as error:
                unjudged.append(f"{check.message} ({_first_line(error)})")
        if open_until and (messages or unjudged):
            return Judgement(Standing.EXEMPT, tuple(messages), max(open_until))
        if messages:
            return Judgement(Standing.VIOLATES, tuple(messages))
        return Judgement(Standing.NOT_EVALUATED if unjudged else Standing.CONFORMS, tuple(unjudged))

    def _activation(self, pod: Object, namespace: Object, now_s: float) -> dict[str, Any]:
        activation: dict[str, Any] = {
            "object": pod,
            "oldObject": None,
            "request": {"operation": "CREATE"},
            "namespaceObject": namespace,
            "variables": {"now": _program(f"timestamp('{stamp(now_s)}')").execute({})},
        }
        for name, program in self._variables:
            value = _run(program, activation)
            if value is not None:
                activation["variables"][name] = value
        return activation


_EVALUATION = (ValueError, TypeError, RuntimeError, KeyError, IndexError, OverflowError)
"""What the interpreter raises where an expression ends in an error."""


def _program(expression: str) -> Any:
    import cel

    try:
        return cel.compile(expression)
    except ValueError as error:
        raise CelError(str(error)) from None


def _check(rule: Object) -> _Check:
    expression = rule.get("messageExpression")
    return _Check(_program(rule["expression"]), rule["message"], _program(expression) if expression else None)


def _context(activation: Mapping[str, Any]) -> Any:
    import cel

    return cel.Context(variables=dict(activation), functions=dict(_FUNCTIONS))


def _run(program: Any, activation: Mapping[str, Any]) -> Any:
    """None where it ends in an error: what rests on it ends in one as well, as in the API server."""
    try:
        return program.execute(_context(activation))
    except _EVALUATION:
        return None


def _message(check: _Check, activation: Mapping[str, Any]) -> str:
    text = _run(check.message_program, activation) if check.message_program is not None else None
    return text if isinstance(text, str) else check.message


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)[:200]


def syntax_errors(policy: CompliancePolicy, around: Surroundings) -> Iterator[str]:
    """What is no CEL in a policy, as far as it can be said without an API server."""
    for rule in rules_of(policy, around.gpu_resources):
        try:
            _program(rule.expression)
        except CelError as error:
            yield f"CompliancePolicy {policy.name}: {rule.message} {error}"
