"""What a policy asks of a pod, rule by rule, as CEL over the variables of ``compile``."""

from collections.abc import Iterator
from dataclasses import dataclass

from kopt.core.hardware.inventory import MODEL_LABELS, model_pattern
from kopt.core.workload.compliance import CompliancePolicy
from kopt.policies.compliance.expressions import (
    both,
    bound_to,
    either,
    glob,
    listed,
    literal,
    matches_any,
)

REGION_LABEL = "topology.kubernetes.io/region"
_MOST_LISTED = 5


@dataclass(frozen=True)
class Rule:
    """``expression`` is true of a pod that conforms. ``shows`` is CEL for a message that names what is wrong, where
    that can be said. ``also_updates``: it is asked again of a pod whose images change."""

    name: str
    expression: str
    message: str
    shows: str = ""
    also_updates: bool = False
    on_nodes: bool = False
    """It is about the nodes that a pod selects, which a default may add as the pod is created."""


def rules_of(policy: CompliancePolicy, gpu_resources: tuple[str, ...]) -> list[Rule]:
    """Raises ValueError for a name that is none."""
    return [
        *_images(policy),
        *_hardware(policy),
        *_regions(policy),
        *_residency(policy),
        *_size(policy, gpu_resources),
        *(Rule(f"rule-{n}", f"({rule.expression}\n)", rule.message) for n, rule in enumerate(policy.rules)),
    ]


def _images(policy: CompliancePolicy) -> Iterator[Rule]:
    if policy.allowed_images:
        allowed = matches_any("i", [glob(pattern) for pattern in policy.allowed_images])
        sentence = f"images have to match {_any_of(policy.allowed_images)}"
        wrong = f"variables.images.filter(i, !({allowed}))"
        yield _of_images("allowed-images", f"variables.images.all(i, {allowed})", sentence, wrong)
    if policy.denied_images:
        denied = matches_any("i", [glob(pattern) for pattern in policy.denied_images])
        sentence = f"images must not match {_any_of(policy.denied_images)}"
        wrong = f"variables.images.filter(i, {denied})"
        yield _of_images("denied-images", f"!variables.images.exists(i, {denied})", sentence, wrong)


def _of_images(name: str, expression: str, sentence: str, wrong: str) -> Rule:
    shows = f"'image ' + {wrong}[0] + {literal(f': {sentence}.')}"
    return Rule(name, expression, f"{sentence}.", shows, also_updates=True)


def _hardware(policy: CompliancePolicy) -> Iterator[Rule]:
    if policy.allowed_hardware:
        test = matches_any("v", [model_pattern(name) for name in policy.allowed_hardware])
        sentence = (
            f"accelerators have to be {_any_of(policy.allowed_hardware)}: select their nodes by {MODEL_LABELS[0]} or "
            "its like, in nodeSelector or required node affinity."
        )
        expression = either(("!variables.accelerated", bound_to(MODEL_LABELS, test)))
        yield Rule("hardware", expression, sentence, on_nodes=True)


def _regions(policy: CompliancePolicy) -> Iterator[Rule]:
    if policy.allowed_regions:
        sentence = f"pods have to select nodes of {_any_of(policy.allowed_regions)} by {REGION_LABEL}."
        expression = bound_to((REGION_LABEL,), f"v in {listed(policy.allowed_regions)}")
        yield Rule("regions", expression, sentence, on_nodes=True)


def _residency(policy: CompliancePolicy) -> Iterator[Rule]:
    """A namespace without the label has no such duty; one with a value that no policy knows can have no pods."""
    if not policy.residency:
        return
    key = literal(policy.residency_label)
    labels = "namespaceObject.metadata.labels"
    has_none = f"!has({labels}) || !({key} in {labels})"
    cases = [
        both((f"{labels}[{key}] == {literal(value)}", bound_to((REGION_LABEL,), f"v in {listed(regions)}")))
        for value, regions in sorted(policy.residency.items())
    ]
    required = "; ".join(f"{value}: {_any_of(regions)}" for value, regions in sorted(policy.residency.items()))
    text = (
        f"the label {policy.residency_label} of the namespace asks for nodes of certain regions ({required}): "
        f"select them by {REGION_LABEL}."
    )
    yield Rule("residency", either((has_none, *cases)), text, on_nodes=True)


def _size(policy: CompliancePolicy, gpu_resources: tuple[str, ...]) -> Iterator[Rule]:
    if policy.maximum_gpus is not None:
        amounts = "has(c.resources) && has(c.resources.limits)"
        counted = f"c.resources.limits.filter(k, k in {listed(gpu_resources)}).map(k, int(c.resources.limits[k]))"
        total = f"variables.spec.containers.map(c, {amounts} ? {counted}.sum() : 0).sum()"
        sentence = f"a pod may have at most {policy.maximum_gpus} GPUs."
        yield Rule("size", f"{total} <= {policy.maximum_gpus}", sentence)


def _any_of(values: tuple[str, ...]) -> str:
    more = f" or {len(values) - _MOST_LISTED} more" if len(values) > _MOST_LISTED else ""
    return " or ".join(values[:_MOST_LISTED]) + more
