"""Compliance policies as people declare them, and what judging pods by them gives."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

FIELD_MANAGER = "kopt-policies"
"""The field manager of the objects that policies become."""


class PolicyMode(StrEnum):
    """Whether a violation is only said (a warning to the user, and the API server's audit log), or refused."""

    AUDIT = "Audit"
    DENY = "Deny"


class Applies(StrEnum):
    """The pods that a policy is about: all of its namespaces, or those alone that ask for an accelerator."""

    ALL = "All"
    ACCELERATED = "Accelerated"


@dataclass(frozen=True)
class CelRule:
    """``expression`` is true of a pod that conforms; ``message`` is for whoever wrote one that does not."""

    expression: str
    message: str


@dataclass(frozen=True)
class Exemption:
    """Pods that a policy leaves alone until ``until_s`` (Unix seconds). Empty parts match every pod; all parts have to
    match. ``image`` is a pattern that every image of the pod has to match."""

    until_s: float
    reason: str
    namespace: str = ""
    image: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Defaults:
    """What pods get that say nothing themselves."""

    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    node_selector: Mapping[str, str] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.labels or self.annotations or self.node_selector)


@dataclass(frozen=True)
class TeamLimit:
    """The most GPUs that the running pods of a team may have together. The team is a label of the pod, or where
    ``label`` is empty its namespace."""

    gpus: int
    label: str = ""


@dataclass(frozen=True)
class CompliancePolicy:
    """A ``CompliancePolicy`` object. Patterns are globs in which ``*`` stands for anything; empty parts ask nothing."""

    name: str
    mode: PolicyMode = PolicyMode.AUDIT
    applies: Applies = Applies.ALL
    namespace_selector: Mapping[str, object] = field(default_factory=dict)
    """A LabelSelector; empty: namespaces that are managed by us."""
    message: str = ""
    """Said after what is wrong: whom to ask, where to read."""
    allowed_images: tuple[str, ...] = ()
    denied_images: tuple[str, ...] = ()
    allowed_hardware: tuple[str, ...] = ()
    """Models as in ``kaiwo.ai/hardware``."""
    allowed_regions: tuple[str, ...] = ()
    residency_label: str = ""
    """Of namespaces; its value selects the regions in ``residency``."""
    residency: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    maximum_gpus: int | None = None
    """Of one pod."""
    team: TeamLimit | None = None
    rules: tuple[CelRule, ...] = ()
    defaults: Defaults = Defaults()
    exemptions: tuple[Exemption, ...] = ()


@dataclass(frozen=True)
class Surroundings:
    """What a policy does not say itself: who its objects belong to, where no policy of ours applies, and how pods ask
    for accelerators (prefixes of resources, and annotations that stand for them)."""

    labels: Mapping[str, str]
    managed: tuple[str, str]
    """The label of namespaces that are ours to act in."""
    spared_namespaces: tuple[str, ...] = ()
    resource_prefixes: tuple[str, ...] = ()
    share_annotations: tuple[str, ...] = ()
    gpu_resources: tuple[str, ...] = ("nvidia.com/gpu", "amd.com/gpu")
    """Resources that count whole accelerators."""


@dataclass(frozen=True)
class TeamPod:
    """What counts of a pod for its team, while it has not ended."""

    namespace: str
    labels: Mapping[str, str]
    milli_gpu: int


class Standing(StrEnum):
    """How a pod stands to a policy."""

    CONFORMS = "conforms"
    VIOLATES = "violates"
    EXEMPT = "exempt"
    NOT_EVALUATED = "not evaluated"
    """The interpreter at hand lacks a function that a rule calls, or a rule ends in an error."""


@dataclass(frozen=True)
class Judgement:
    """``messages`` are the violations, or why it is not judged; ``exempt_until_s`` is set where it is exempt."""

    standing: Standing
    messages: tuple[str, ...] = ()
    exempt_until_s: float | None = None
