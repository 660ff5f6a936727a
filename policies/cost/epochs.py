"""What each epoch of a training cost: the charges of its pods while it went on, and what that bought."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kopt.core.cost.metering import GPU_HOUR
from kopt.formats.joblog.epochs import Epoch
from kopt.policies.cost.report import CostEvent

_THOUSAND = 1000


@dataclass(frozen=True)
class EpochCost:
    """``epoch`` is None for the whole run. ``micro`` is in millionths of ``currency``, None where a price is not known;
    steps are 0, and samples and tokens None, where the log counts none. Times are Unix milliseconds."""

    epoch: int | None
    start_ms: int
    end_ms: int
    gpu_hours: float
    micro: int | None
    currency: str
    steps: int = 0
    samples: float | None = None
    tokens: float | None = None

    @property
    def micro_per_1000_steps(self) -> int | None:
        return round(_THOUSAND * self.micro / self.steps) if self.micro is not None and self.steps else None

    @property
    def samples_per_unit(self) -> float | None:
        """For one unit of the currency."""
        return self._per_unit(self.samples)

    @property
    def tokens_per_unit(self) -> float | None:
        """As ``samples_per_unit``."""
        return self._per_unit(self.tokens)

    def _per_unit(self, amount: float | None) -> float | None:
        return None if amount is None or not self.micro else amount / (self.micro / 1e6)


def epoch_costs(events: Sequence[CostEvent], epochs: Sequence[Epoch]) -> list[EpochCost]:
    """Each epoch, and then the whole run: all that its pods were charged, also before, between and after epochs.

    An epoch that the log tells twice, as after a restart, has a row for each time: it was paid twice. Raises ValueError
    where amounts are of several currencies.
    """
    currencies = sorted({event.price.currency for event in events if event.price is not None})
    if len(currencies) > 1:
        raise ValueError(f"the run was paid in {' and '.join(currencies)}")
    currency = currencies[0] if currencies else ""
    rows = [_of(events, epoch, currency) for epoch in epochs]
    start_ms, end_ms = min(event.start_ms for event in events), max(event.end_ms for event in events)
    hours, micro = _charged(events, start_ms, end_ms)
    steps = sum(row.steps for row in rows)
    samples, tokens = (_sum([getattr(row, name) for row in rows]) for name in ("samples", "tokens"))
    return [*rows, EpochCost(None, start_ms, end_ms, hours, micro, currency, steps, samples, tokens)]


def distinct_epochs(sources: Mapping[str, Sequence[Epoch]]) -> list[Epoch]:
    """Epochs of a run by their begin, each once: processes of a run print the same, so what goes on while a source with
    more epochs has one is left out; what comes after a restart is another source's, and stays."""
    order = sorted(sources, key=lambda name: (-len(sources[name]), -sum(each.steps for each in sources[name]), name))
    kept: list[Epoch] = []
    for name in order:
        kept += [epoch for epoch in sources[name] if not any(_is_same_time(epoch, other) for other in kept)]
    return sorted(kept, key=lambda epoch: epoch.start_s)


def _is_same_time(epoch: Epoch, other: Epoch) -> bool:
    is_within = epoch.start_s < other.end_s and other.start_s < epoch.end_s
    return is_within or other.start_s <= epoch.start_s < other.end_s or epoch.start_s == other.start_s


def _of(events: Sequence[CostEvent], epoch: Epoch, currency: str) -> EpochCost:
    start_ms, end_ms = round(epoch.start_s * 1000), round(epoch.end_s * 1000)
    hours, micro = _charged(events, start_ms, end_ms)
    seconds = epoch.end_s - epoch.start_s
    samples, tokens = (None if rate is None else rate * seconds for rate in (epoch.samples_per_s, epoch.tokens_per_s))
    return EpochCost(epoch.number, start_ms, end_ms, hours, micro, currency, epoch.steps, samples, tokens)


def _charged(events: Sequence[CostEvent], start_ms: int, end_ms: int) -> tuple[float, int | None]:
    """GPU-hours and amount within a time; the amount is None where a part has no price."""
    used, micro, is_priced = 0.0, 0.0, True
    for event in events:
        span_ms = min(end_ms, event.end_ms) - max(start_ms, event.start_ms)
        if span_ms > 0:
            share = span_ms / (event.end_ms - event.start_ms)
            used += event.used * share
            micro += (event.micro or 0) * share
            is_priced &= event.micro is not None
    return used / GPU_HOUR, round(micro) if is_priced else None


def _sum(values: Sequence[float | None]) -> float | None:
    """None where any is."""
    listed = [value for value in values if value is not None]
    return sum(listed) if listed and len(listed) == len(values) else None
