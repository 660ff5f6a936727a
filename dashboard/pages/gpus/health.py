"""What the page of GPUs shows of a node's health: its grade, what speaks against each GPU, and who says so."""

from dataclasses import dataclass

from kopt.core.decision import Mode
from kopt.core.hardware.health import CodeKind, Entry, EvidenceClass, code_of
from kopt.core.scheduling.gpu_map import NodeStanding
from kopt.core.times import stamp
from kopt.core.units import format_span
from kopt.policies.health.evidence import load_of
from kopt.policies.health.grades import heaviest

_CONTROLLER = "kopt health"
_FOLLOWS = {
    Mode.OBSERVE: "mode observe: nobody goes by it",
    Mode.ANNOTATE: "mode annotate: the extender prefers others",
    Mode.ENFORCE: "mode enforce: condemned ones take no new pods",
}


@dataclass(frozen=True)
class EvidenceLine:
    """One thing that is said of a GPU; ``gpu`` is empty for the node. ``weighs`` is its load now, of which 1 condemns,
    None for what others say; ``fades`` says how that ends, ``last`` when it was last observed."""

    gpu: str
    what: str
    by: str
    weighs: float | None = None
    fades: str = ""
    last: str = ""


@dataclass(frozen=True)
class NodeHealthLine:
    """``grade`` is empty where the health controller says nothing of the node; ``badge`` is the class of its badge."""

    grade: str
    badge: str
    score: float
    since: str
    follows: str
    lines: tuple[EvidenceLine, ...]


def health_line(standing: NodeStanding, now_s: float) -> NodeHealthLine:
    """Evidence, the heaviest first, then what stands on objects of the cluster."""
    entries = {(entry.code, entry.gpu): entry for entry in standing.entries}
    evidence = [_evidence(entry, now_s) for _, entry in heaviest(entries, now_s)]
    statements = [EvidenceLine(each.gpu, each.text, each.by) for each in standing.statements]
    grade = standing.grade
    return NodeHealthLine(
        "" if grade is None else grade.text.lower(),
        "" if grade is None else ("ok", "pending", "refused")[grade],
        standing.score,
        stamp(standing.since_s) if standing.since_s else "",
        _FOLLOWS[standing.mode],
        (*evidence, *statements),
    )


def _evidence(entry: Entry, now_s: float) -> EvidenceLine:
    code = code_of(entry.code)
    times = f", {entry.count:g} times" if entry.count > 1 and code.kind is CodeKind.EVENT else ""
    detail = f" ({entry.detail})" if entry.detail else ""
    if code.of is EvidenceClass.APPLICATION:
        fades = "the program's own fault: never counts"
    elif entry.lasts:
        fades = "until a repair" if code.sticky else "while it lasts"
    else:
        fades = f"halves every {format_span(code.half_life_s)}"
    what = f"{code.label}: {code.means}{times}{detail}"
    return EvidenceLine(entry.gpu, what, _CONTROLLER, load_of(entry, now_s), fades, stamp(entry.last_s))
