"""``CompliancePolicy`` objects (``kaiwo.ai/v1alpha1``) as core types."""

from collections.abc import Iterator
from typing import Any

from kopt.cluster.client.resources import Object
from kopt.cluster.objects.fields import at, items, mapping, text, texts
from kopt.core.times import seconds
from kopt.core.workload.compliance import (
    Applies,
    CelRule,
    CompliancePolicy,
    Defaults,
    Exemption,
    PolicyMode,
    TeamLimit,
)

API_VERSION, KIND = "kaiwo.ai/v1alpha1", "CompliancePolicy"
LONGEST_NAME = 63
_LONGEST_EXPRESSION = 4096
_PARTS = frozenset(
    {
        *("mode", "appliesTo", "namespaceSelector", "message", "images", "hardware", "regions", "residency"),
        *("maximumGpus", "maximumPerTeam", "rules", "defaults", "exemptions"),
    }
)


def policy_of(document: Object) -> CompliancePolicy:
    """The spec. Raises ValueError for one that cannot be meant; the message names the field."""
    spec = mapping(document, "spec")
    name = text(document, "metadata", "name")
    if not name or len(name) > LONGEST_NAME:
        raise ValueError(f"metadata.name has 1 to {LONGEST_NAME} characters")
    if unknown := sorted(spec.keys() - _PARTS):
        raise ValueError(f"spec.{unknown[0]} is no field of a CompliancePolicy; there are {', '.join(sorted(_PARTS))}")
    return CompliancePolicy(
        name=name,
        mode=_choice(spec, "mode", PolicyMode, PolicyMode.AUDIT),
        applies=_choice(spec, "appliesTo", Applies, Applies.ALL),
        namespace_selector=dict(mapping(spec, "namespaceSelector")),
        message=text(spec, "message"),
        allowed_images=_texts(spec, "images", "allowed"),
        denied_images=_texts(spec, "images", "denied"),
        allowed_hardware=_texts(spec, "hardware", "allowed"),
        allowed_regions=_texts(spec, "regions", "allowed"),
        residency_label=text(spec, "residency", "namespaceLabel"),
        residency=_residency(spec),
        maximum_gpus=_number(spec, "maximumGpus"),
        team=_team(spec),
        rules=tuple(_rules(spec)),
        defaults=_defaults(spec),
        exemptions=tuple(_exemptions(spec)),
    )


def _choice(spec: Any, field: str, choices: Any, default: Any) -> Any:
    written = at(spec, field)
    try:
        return default if written is None else choices(written)
    except ValueError:
        raise ValueError(f"spec.{field} is {' or '.join(choices)}, not {str(written)[:40]!r}") from None


def _texts(spec: Any, *path: str) -> tuple[str, ...]:
    """Raises ValueError for a list with anything else in it: half a list of what is allowed is another policy."""
    written = at(spec, *path)
    if written is None:
        return ()
    result = texts(written)
    if not isinstance(written, list) or not result or len(result) != len(written) or not all(result):
        raise ValueError(f"spec.{'.'.join(path)} is a list of one or more names")
    return result


def _residency(spec: Any) -> dict[str, tuple[str, ...]]:
    names = [str(name) for name, _ in items(spec, "residency", "regions")]
    result = {name: _texts(spec, "residency", "regions", name) for name in names}
    if at(spec, "residency") is not None and not (result and text(spec, "residency", "namespaceLabel")):
        raise ValueError("spec.residency needs a namespaceLabel, and regions for each of its values")
    return result


def _number(spec: Any, *path: str) -> int | None:
    written = at(spec, *path)
    if written is None:
        return None
    if isinstance(written, bool) or not isinstance(written, int) or not 0 <= written <= 10**6:
        raise ValueError(f"spec.{'.'.join(path)} is a number from 0 to 1000000")
    return written


def _team(spec: Any) -> TeamLimit | None:
    gpus = _number(spec, "maximumPerTeam", "gpus")
    if at(spec, "maximumPerTeam") is None:
        return None
    if gpus is None:
        raise ValueError("spec.maximumPerTeam needs gpus")
    return TeamLimit(gpus, text(spec, "maximumPerTeam", "label"))


def _rules(spec: Any) -> Iterator[CelRule]:
    for number, rule in items(spec, "rules"):
        expression, message = text(rule, "expression"), text(rule, "message")
        if not expression.strip() or not message or len(expression) > _LONGEST_EXPRESSION:
            raise ValueError(f"spec.rules[{number}] needs an expression (CEL) and a message")
        yield CelRule(expression, message)


def _defaults(spec: Any) -> Defaults:
    parts = ("labels", "annotations", "nodeSelector")
    return Defaults(*({str(k): str(v) for k, v in mapping(spec, "defaults", part).items()} for part in parts))


def _exemptions(spec: Any) -> Iterator[Exemption]:
    for number, item in items(spec, "exemptions"):
        where = f"spec.exemptions[{number}]"
        labels = {str(key): str(value) for key, value in mapping(item, "labels").items()}
        try:
            until_s = seconds(text(item, "until"))
        except (ValueError, OverflowError):
            raise ValueError(f"{where}.until is a time as 2027-01-31T00:00:00Z") from None
        result = Exemption(until_s, text(item, "reason"), text(item, "namespace"), text(item, "image"), labels)
        if not result.reason:
            raise ValueError(f"{where} needs a reason")
        if not (result.namespace or result.image or result.labels):
            raise ValueError(f"{where} names a namespace, an image or labels: nobody is exempt from everything")
        yield result
