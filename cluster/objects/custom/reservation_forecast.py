"""Reservations that a forecast has proposed: their manifests, and the annotation that says by which forecast."""

import json
from dataclasses import dataclass

from kopt.cluster.client.resources import Object
from kopt.cluster.objects.custom.reservation import API_VERSION, KIND
from kopt.cluster.objects.fields import text
from kopt.core.scheduling.reservation import Reservation
from kopt.core.times import seconds, stamp
from kopt.core.units import format_gpus
from kopt.core.untrusted import UnreadableError, decode_mapping

FORECAST_ANNOTATION = "kaiwo.ai/reservation-forecast"
"""JSON: the model, the quantile, when it was made, and what it said."""


@dataclass(frozen=True)
class ForecastMark:
    """``middle`` and ``upper``: median and quantile of the demand at its highest, ``free``: what is free without the
    reservation, thousandths of a GPU. ``by`` and ``days``: how the history was read, and how much of it there was.
    ``kept``: the share of the hours of the week before that stayed within the forecast a day ahead, None if unknown."""

    model: str
    quantile: float
    made_s: float
    by: str = ""
    days: int = 0
    middle: float = 0.0
    upper: float = 0.0
    free: float = 0.0
    kept: float | None = None


def forecast_mark(document: Object) -> ForecastMark | None:
    """None of a reservation that no forecast has proposed, or whose annotation cannot be read."""
    written = text(document, "metadata", "annotations", FORECAST_ANNOTATION)
    if not written:
        return None
    try:
        row = decode_mapping(written)
        return ForecastMark(str(row["model"]), float(row["quantile"]), seconds(row["madeAt"]))
    except (UnreadableError, KeyError, TypeError, ValueError, OverflowError):
        return None


def proposed_document(reservation: Reservation, mark: ForecastMark) -> Object:
    """A manifest for `kubectl apply`."""
    row = {
        "model": mark.model,
        "quantile": mark.quantile,
        "madeAt": stamp(mark.made_s),
        "by": mark.by,
        "days": mark.days,
        "median": _gpus(mark.middle),
        "upper": _gpus(mark.upper),
        "free": _gpus(mark.free),
        **({} if mark.kept is None else {"kept": round(mark.kept, 3)}),
    }
    namespace, _, name = reservation.name.partition("/")
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": name, "namespace": namespace, "annotations": {FORECAST_ANNOTATION: json.dumps(row)}},
        "spec": {
            "queueName": reservation.queue,
            "pool": reservation.pool,
            "nodes": reservation.nodes,
            "gpusPerNode": reservation.gpus_per_node,
            "start": stamp(reservation.start_s),
            "until": stamp(reservation.until_s),
            "lead": _span(reservation.lead_s),
        },
    }


def _gpus(milli: float) -> str:
    return format_gpus(round(milli / 100) * 100)


def _span(span_s: float) -> str:
    """In the CRD's words: whole seconds, minutes or hours, four digits of them."""
    whole_s = round(span_s)
    if whole_s % 60:
        return f"{whole_s}s"
    return f"{whole_s // 3600}h" if whole_s and whole_s % 3600 == 0 else f"{whole_s // 60}m"
