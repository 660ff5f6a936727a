"""What ``kopt cost spot`` knows of interruptions and checkpoints: from options, the meter, and the endpoint."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kopt.cli.errors import Refused, usage_error
from kopt.cli.options import seconds
from kopt.core.units import format_span

if TYPE_CHECKING:
    from kopt.cli.cost.reading import Source
    from kopt.policies.cost.spot_rates import Rates

_LOST_S = 900


@dataclass(frozen=True)
class History:
    """Interruptions of one node in ``busy_s`` of use, their rates by age, and the rates at which capacity came back.
    ``text`` says where they are from."""

    count: int
    busy_s: float
    interruptions: "Rates"
    returns: "Rates"
    text: str


@dataclass(frozen=True)
class Loss:
    """Seconds of work that an interruption loses on average and at most, and where that is from."""

    mean_s: float
    most_s: float
    text: str


def counted_by_hand(count: int, over: str, outage: str) -> History:
    """From ``--interruptions``, ``--over`` and ``--outage``."""
    from kopt.policies.cost.spot_rates import Rates, rate_of

    span_s = seconds(over, "--over")
    returns = 3600 / seconds(outage, "--outage") if outage else 0.0
    back = f"it is back after {outage} on average" if outage else "without --outage it is taken not to come back"
    rates = Rates.alike(rate_of(count, span_s)), Rates.alike(returns)
    return History(count, span_s, *rates, f"{count} interruptions in {format_span(span_s)}, as given; {back}.")


def counted_by_the_meter(source: "Source", model: str, provider: str) -> History:
    """Of all nodes of a GPU model on spot capacity that the meter has seen in use. Raises Refused where it saw none,
    DatabaseError."""
    from kopt.controllers.meter.spot_nodes import spot_nodes
    from kopt.policies.cost.interruptions import interruptions
    from kopt.policies.cost.spot_rates import rates_of

    seen = interruptions(spot_nodes(source.store, source.window), source.window.end_ms)
    offers = [each for each in seen if each.offer.model == model and provider in ("", each.offer.provider)]
    if not offers:
        known = ", ".join(sorted({f"{each.offer.model} {each.offer.provider}".strip() for each in seen})) or "none"
        raise Refused(f"the meter has seen no spot node with {model} {provider} in use (spot nodes seen: {known})")
    there = [spell for each in offers for spell in each.there]
    away = [spell for each in offers for spell in each.away]
    busy_s = sum(spell.span_s for spell in there)
    text = f"The meter saw {len(away)} interruptions in {format_span(busy_s)} of use of {len(there)} spot nodes."
    return History(len(away), busy_s, rates_of(there), rates_of(away), text)


def loss(lost: str, job: str) -> Loss:
    """From ``--lost``, or from how often a job saves, by the endpoint that follows its log. Raises Refused."""
    if lost and job:
        usage_error("not beside --job, whose checkpoints say it", "--lost")
    if not job:
        mean_s = seconds(lost, "--lost") if lost else _LOST_S
        return Loss(mean_s, 2 * mean_s, f"An interruption loses {format_span(mean_s)} of work on average.")
    interval_s = _save_interval_s(job)
    text = f"{job} saves every {format_span(interval_s)}: an interruption loses half of that on average."
    return Loss(interval_s / 2, interval_s, text)


def _save_interval_s(job: str) -> float:
    from kopt.cli.endpoint import endpoint
    from kopt.serving.base.environment import load_settings

    with endpoint(load_settings()) as client:
        jobs = [each for each in client.jobs(job).jobs if each.job == job]
    if not jobs:
        raise Refused(
            f"the endpoint follows no job {job!r} (NAMESPACE/NAME); give --lost, half of what is between saves"
        )
    since_s, next_s = jobs[0].seconds_since_durable, jobs[0].next_checkpoint_seconds
    if since_s is None or next_s is None:
        raise Refused(f"{job} has not saved often enough to tell its interval ({jobs[0].reason}); give --lost")
    return max(60.0, since_s + next_s)
