"""The hardware that a workload names (K21): whether any node has it, and which labels select those nodes.

A name is that of a model as people say it, ``h100``, ``mi300x``, ``tpu-v5e``; several are alternatives. What the
cluster has comes from its inventory; nothing is refused while that is not known.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from kopt.core.hardware.inventory import Hardware, is_model, model_slug
from kopt.core.reason import Reason
from kopt.core.units import GIB, Bytes, UnitError, parse_bytes
from kopt.policies.queues.tree import nearest

HARDWARE_KEY = "kaiwo.ai/hardware"
"""Annotation or label: names of models, separated by commas."""
MEMORY_KEY = "kaiwo.ai/hardware-memory"
"""Annotation: the least memory of each accelerator, as 80Gi."""
PLACEMENT_KEY = "kaiwo.ai/hardware-placement"
"""Annotation: ``required`` has the nodes selected by required node affinity."""
REQUIRED = "required"
MOST_NAMES = 16
_MOST_LISTED = 5


class Node(Protocol):
    """A node with what it offers."""

    @property
    def name(self) -> str: ...
    @property
    def labels(self) -> Mapping[str, str]: ...
    @property
    def hardware(self) -> tuple[Hardware, ...]: ...


@dataclass(frozen=True)
class HardwareWish:
    """As written; the memory may stand alone."""

    names: str = ""
    memory: str = ""
    placement: str = ""


@dataclass(frozen=True)
class HardwareChoice:
    """``labels`` are alternatives: a node with one of them has the hardware. ``refused``: no node of the cluster can
    ever run the workload, and the last of ``reasons`` says what would."""

    reasons: tuple[Reason, ...]
    refused: bool = False
    labels: tuple[tuple[str, str], ...] = field(default=())

    @property
    def remarks(self) -> tuple[Reason, ...]:
        return tuple(reason for reason in self.reasons if reason.code != "HARDWARE")


def choose_hardware(
    wish: HardwareWish, nodes: Sequence[Node] | None, selectors: Sequence[Mapping[str, str]]
) -> HardwareChoice:
    """``nodes`` is None where the inventory is not known; ``selectors`` are the node selectors of the templates."""
    try:
        names, least = _parsed(wish)
    except ValueError as error:
        return _refused(Reason("HARDWARE_UNREADABLE", f"{error}."))
    if nodes is None:
        return HardwareChoice((Reason("HARDWARE_NOT_KNOWN", "Which hardware the nodes have is not known yet."),))
    named = [(node, item) for node in nodes for item in node.hardware if _is_named(names, item)]
    if not named:
        return _refused(_unknown(names, nodes))
    fitting = [(node, item) for node, item in named if item.memory_bytes >= least]
    if not fitting:
        return _refused(_too_small(names, least, named, nodes))
    open_nodes = [(node, item) for node, item in fitting if all(_selects(selector, node) for selector in selectors)]
    if not open_nodes:
        return _refused(_excluded(names, fitting, nodes, selectors))
    return _accepted(wish, open_nodes)


def _parsed(wish: HardwareWish) -> tuple[list[str], Bytes]:
    names = [model_slug(name) for name in wish.names.split(",") if name.strip()]
    if len(names) > MOST_NAMES or not (names or wish.memory):
        raise ValueError(f"{HARDWARE_KEY} names {len(names)} models; name 1 to {MOST_NAMES}, separated by commas")
    if wish.placement not in ("", REQUIRED):
        raise ValueError(f"{PLACEMENT_KEY} is {REQUIRED} or not there, not {wish.placement[:40]!r}")
    try:
        return names, parse_bytes(wish.memory) if wish.memory else Bytes(0)
    except UnitError:
        raise ValueError(f"{MEMORY_KEY} is an amount as 80Gi, not {wish.memory[:40]!r}") from None


def _is_named(names: Sequence[str], item: Hardware) -> bool:
    return not names or any(is_model(name, item.model) for name in names)


def _selects(selector: Mapping[str, str], node: Node) -> bool:
    return selector.items() <= node.labels.items()


def _accepted(wish: HardwareWish, fitting: Sequence[tuple[Node, Hardware]]) -> HardwareChoice:
    names = list(dict.fromkeys(node.name for node, _ in fitting))
    models = ", ".join(sorted({item.model for _, item in fitting})[:_MOST_LISTED])
    reasons = [Reason("HARDWARE", f"{len(names)} nodes have it: {models}.", {"nodes": len(names)})]
    labels: tuple[tuple[str, str], ...] = ()
    if wish.placement == REQUIRED:
        labels = tuple(dict.fromkeys(item.labels[0] for _, item in fitting if item.labels))
        if bare := [node.name for node, item in fitting if not item.labels]:
            text = f"No label names the model of {_listed(bare)}: the affinity leaves these nodes out."
            reasons.append(Reason("HARDWARE_NO_LABEL", text))
    return HardwareChoice(tuple(reasons), labels=labels)


def _unknown(names: Sequence[str], nodes: Sequence[Node]) -> Reason:
    have = _models(nodes)
    short = {word: model for model in have for word in (model.lower(), *model.lower().replace("_", "-").split("-"))}
    hint = next((near for name in names if (near := nearest(name, short))), "")
    there = f"the cluster has {_listed(have)}" if have else "the cluster has no accelerators"
    what = f"No node has {' or '.join(names) or 'an accelerator'} ({HARDWARE_KEY})"
    text = f"{what}; {there}{hint or '.'}"
    return Reason("HARDWARE_UNKNOWN", text, {"hardware": ",".join(names)})


def _too_small(
    names: Sequence[str], least: Bytes, named: Sequence[tuple[Node, Hardware]], nodes: Sequence[Node]
) -> Reason:
    most = max(item.memory_bytes for _, item in named)
    what = " or ".join(names) or "accelerators"
    text = f"{what} of this cluster have at most {_gib(most)}, and {MEMORY_KEY} asks for {_gib(least)}"
    larger = [(item.memory_bytes, node.name, item.model) for node in nodes for item in node.hardware]
    larger = sorted(each for each in larger if each[0] >= least)
    if larger:
        size, node, model = larger[0]
        text += f"; {model} on node {node} has {_gib(Bytes(size))}"
    return Reason("HARDWARE_TOO_SMALL", f"{text}.")


def _excluded(
    names: Sequence[str],
    fitting: Sequence[tuple[Node, Hardware]],
    nodes: Sequence[Node],
    selectors: Sequence[Mapping[str, str]],
) -> Reason:
    would = fitting[0][0].name
    text = f"Its node selector excludes every node with {' or '.join(names) or 'enough memory'}, such as {would}"
    remaining = [node for node in nodes if node.hardware and all(_selects(selector, node) for selector in selectors)]
    if remaining:
        text += f"; the nodes that it leaves have {_listed(_models(remaining))}"
    return Reason("HARDWARE_EXCLUDED", f"{text}. Correct one of the two.", {"node": would})


def _models(nodes: Iterable[Node]) -> list[str]:
    """The most frequent first."""
    counted = Counter(item.model for node in nodes for item in node.hardware)
    return [model for model, _ in counted.most_common()]


def _gib(size: Bytes) -> str:
    return f"{size / GIB:.0f} GiB" if size else "an unknown amount"


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MOST_LISTED} more" if len(names) > _MOST_LISTED else ""
    return ", ".join(names[:_MOST_LISTED]) + more


def _refused(reason: Reason) -> HardwareChoice:
    return HardwareChoice((reason,), refused=True)
