"""Reservations of the example cluster: one that recurs each day and has a history, and one that is backfilled."""

from kopt.cli.local.example.jobs import EVALUATION
from kopt.cluster.client.resources import Object
from kopt.cluster.objects.custom.reservation import ACCEPTED, account_document, condition, result_document
from kopt.core.scheduling.reservation import Account, Occurrence, Phase, Result
from kopt.core.times import stamp

_HOUR_S, _DAY_S = 3600.0, 86_400.0
_GPUS, _AHEAD_S = 8, 6 * 3600.0


def reservations_at(now_s: float) -> list[Object]:
    """What the controller would have written by ``now_s``."""
    return [_nightly(now_s), _demonstration(now_s)]


def _nightly(now_s: float) -> Object:
    """Each day from 20:00 to 23:00 UTC."""
    today = now_s // _DAY_S * _DAY_S
    start_s = today + 20 * _HOUR_S
    occurrence = Occurrence(start_s, start_s + 3 * _HOUR_S)
    if now_s >= occurrence.until_s:
        occurrence = Occurrence(start_s + _DAY_S, start_s + _DAY_S + 3 * _HOUR_S)
    history = [_result(occurrence, day) for day in range(1, 6)]
    status = _standing(occurrence, now_s) | {"history": [result_document(each) for each in history]}
    return _reservation("nightly-evaluation", occurrence, status, now_s, recurrence="FREQ=DAILY")


def _demonstration(now_s: float) -> Object:
    """Always five hours from now, and used by others until then."""
    start_s = (now_s // _HOUR_S + 5) * _HOUR_S
    occurrence = Occurrence(start_s, start_s + 8 * _HOUR_S)
    return _reservation("demonstration", occurrence, _standing(occurrence, now_s), now_s)


def _standing(occurrence: Occurrence, now_s: float) -> Object:
    """Held from six hours before its start: two GPUs by Jobs of ours, six are used by others."""
    opened_s = occurrence.start_s - _AHEAD_S
    if now_s < opened_s:
        return {"phase": Phase.SCHEDULED.value, "heldGpus": 0, "usedGpus": 0}
    if now_s >= occurrence.start_s:
        return {"phase": Phase.ACTIVE.value, "heldGpus": 4, "usedGpus": 4}
    backfilled = 0.81 * _GPUS * (now_s - opened_s)
    account = Account(occurrence, opened_s, now_s, backfilled=6, backfilled_gpu_s=backfilled)
    return {"phase": Phase.BACKFILLED.value, "heldGpus": 2, "usedGpus": 0, "account": account_document(account)}


def _result(occurrence: Occurrence, days_ago: int) -> Result:
    past = Occurrence(occurrence.start_s - days_ago * _DAY_S, occurrence.until_s - days_ago * _DAY_S)
    late_s = 140.0 if days_ago == 3 else 0.0
    return Result(past, past.start_s + late_s, 0.7 + 0.04 * days_ago, 0.86 - 0.03 * days_ago, days_ago % 2)


def _reservation(name: str, occurrence: Occurrence, status: Object, now_s: float, **more: str) -> Object:
    spec = {
        "queueName": EVALUATION,
        "pool": "own",
        "nodes": 1,
        "gpusPerNode": _GPUS,
        "start": stamp(occurrence.start_s),
        "until": stamp(occurrence.until_s),
        "lead": "10m",
        **more,
    }
    times = {"start": stamp(occurrence.start_s), "until": stamp(occurrence.until_s)}
    document: Object = {"metadata": {"name": name, "namespace": "vision"}, "spec": spec}
    accepted = condition(document, ACCEPTED, True, "Accepted", "It can be kept.", now_s - _DAY_S)
    return document | {"status": {**status, **times, "conditions": [accepted]}}
