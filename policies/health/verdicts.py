"""The verdict on each GPU and its node, with hysteresis, and the sentence that explains it."""

from collections.abc import Mapping

from kopt.core.hardware.health import NODE, Entry, EvidenceClass, NodeHealth, Verdict, code_of
from kopt.policies.health.evidence import NEGLIGIBLE, Entries, Thresholds, load_of


def evaluate(
    entries: Entries, before: Mapping[str, Verdict], now_s: float, thresholds: Thresholds | None = None
) -> NodeHealth:
    """``before``: the verdicts that hold so far, by GPU; hysteresis rests on them."""
    thresholds = thresholds or Thresholds()
    loads: dict[str, float] = {}
    for entry in entries.values():
        if (load := load_of(entry, now_s)) >= NEGLIGIBLE:
            loads[entry.gpu] = loads.get(entry.gpu, 0.0) + load
    gpus = {
        gpu: _verdict(loads.get(gpu, 0.0), before.get(gpu, Verdict.HEALTHY), thresholds) for gpu in {*loads, *before}
    }
    gpus = {gpu: verdict for gpu, verdict in gpus.items() if verdict or gpu in loads}
    verdict = max(gpus.values(), default=Verdict.HEALTHY)
    score = 1.0 - min(1.0, max(loads.values(), default=0.0))
    # A verdict that hysteresis keeps is not contradicted by its score.
    score = min(score, {Verdict.CONDEMNED: 0.0, Verdict.SUSPECT: 0.65, Verdict.HEALTHY: 1.0}[verdict])
    return NodeHealth(verdict, score, gpus, loads)


def _verdict(load: float, before: Verdict, thresholds: Thresholds) -> Verdict:
    if load >= thresholds.condemned or (before is Verdict.CONDEMNED and load >= thresholds.not_condemned):
        return Verdict.CONDEMNED
    if load >= thresholds.suspect or (before is not Verdict.HEALTHY and load >= thresholds.not_suspect):
        return Verdict.SUSPECT
    return Verdict.HEALTHY


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
