"""The verdict on each GPU and its node, with hysteresis, and the sentence that explains it."""

from collections.abc import Mapping

from kopt.core.hardware.health import NODE, Entry, EvidenceClass, Grade, NodeHealth, code_of
from kopt.policies.health.evidence import NEGLIGIBLE, Entries, Thresholds, load_of


def evaluate(
    entries: Entries, before: Mapping[str, Grade], now_s: float, thresholds: Thresholds | None = None
) -> NodeHealth:
    """``before``: the verdicts that hold so far, by GPU; hysteresis rests on them."""
    thresholds = thresholds or Thresholds()
    loads: dict[str, float] = {}
    for entry in entries.values():
        if (load := load_of(entry, now_s)) >= NEGLIGIBLE:
            loads[entry.gpu] = loads.get(entry.gpu, 0.0) + load
    gpus = {gpu: _grade(loads.get(gpu, 0.0), before.get(gpu, Grade.HEALTHY), thresholds) for gpu in {*loads, *before}}
    gpus = {gpu: grade for gpu, grade in gpus.items() if grade or gpu in loads}
    grade = max(gpus.values(), default=Grade.HEALTHY)
    score = 1.0 - min(1.0, max(loads.values(), default=0.0))
    # A verdict that hysteresis keeps is not contradicted by its score.
    score = min(score, {Grade.CONDEMNED: 0.0, Grade.SUSPECT: 0.65, Grade.HEALTHY: 1.0}[grade])
    return NodeHealth(grade, score, gpus, loads)


def _grade(load: float, before: Grade, thresholds: Thresholds) -> Grade:
    if load >= thresholds.condemned or (before is Grade.CONDEMNED and load >= thresholds.not_condemned):
        return Grade.CONDEMNED
    if load >= thresholds.suspect or (before is not Grade.HEALTHY and load >= thresholds.not_suspect):
        return Grade.SUSPECT
    return Grade.HEALTHY


def heaviest(entries: Entries, now_s: float) -> list[tuple[float, Entry]]:
    """What counts, the heaviest first, and then what only explains, the newest first."""
    weighed = [(load_of(entry, now_s), entry) for entry in entries.values()]
    return sorted(weighed, key=lambda item: (-item[0], -item[1].last_s, item[1].code, item[1].gpu))


def explain(entries: Entries, now_s: float, most: int = 3) -> str:
    """Why: the heaviest evidence in one line; empty where nothing counts."""
    counted = [(load, entry) for load, entry in heaviest(entries, now_s) if load >= NEGLIGIBLE]
    texts = [sentence(entry) for _, entry in counted[:most]]
    more = f" and {len(counted) - most} more" if len(counted) > most else ""
    return "; ".join(texts) + more


def sentence(entry: Entry) -> str:
    """``GPU 3: XID 79, the GPU has fallen off the bus``."""
    code = code_of(entry.code)
    where = f"GPU {entry.gpu}: " if entry.gpu != NODE else ""
    times = f" ({entry.count:g} times)" if entry.count > 1 and code.kind.value == "event" else ""
    fault = ", the program's own fault" if code.of is EvidenceClass.APPLICATION else ""
    detail = f" ({entry.detail})" if entry.detail else ""
    return f"{where}{code.label}, {code.means}{fault}{times}{detail}"
