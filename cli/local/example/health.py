"""How healthy the nodes of the example cluster are: a worn GPU, a card at half its speed, and a program at fault."""

from collections.abc import Iterable, Sequence

from kopt.cluster.client.resources import Object
from kopt.cluster.objects.custom.node_health import HealthRecord, status_of
from kopt.core.decision import Mode
from kopt.core.hardware.health import NODE, Evidence
from kopt.policies.health.evidence import add
from kopt.policies.health.grades import evaluate, explain

_HOUR_S, _GPUS = 3600.0, 8


def healths_at(now_s: float, nodes: Sequence[str]) -> list[Object]:
    """A NodeHealth of each node, as the health controller writes it; renewed every hour."""
    at_s = now_s - now_s % _HOUR_S
    observed = {
        nodes[0]: [Evidence("XID_43", "2", 3.0, at_s - 2 * _HOUR_S)],
        nodes[1]: [Evidence("XID_94", "4", 2.0, at_s - 5 * _HOUR_S), Evidence("XID_31", "0", 1.0, at_s - _HOUR_S)],
        nodes[2]: [Evidence("LINK_DEGRADED", NODE, 1.0, at_s - _HOUR_S, "nic mlx5_3 had 400, has 200")],
    }
    return [_health(node, observed.get(node, ()), at_s) for node in nodes]


def _health(node: str, evidence: Iterable[Evidence], at_s: float) -> Object:
    entries = add({}, evidence)
    health = evaluate(entries, {}, at_s)
    why = explain(entries, at_s)
    record = HealthRecord(
        node, health, entries, reason=why, mode=Mode.ANNOTATE, since_s=at_s - 24 * _HOUR_S, gpu_count=_GPUS
    )
    return {"metadata": {"name": node}, "status": status_of(record)}
