"""What reservations by forecast cover of the demand above queues' quotas, and how much of them stays unused.

``KOPT_DATA_DIR/jobs``: the hourly GPU demand of Philly's virtual clusters and Microsoft's ITP clusters, each as a queue
whose quota is what was enough in 75 % of the hours of the two weeks before, with nothing to borrow. At the end of each
day from the third week on, `kopt reservations propose` says what to reserve, in whole nodes of eight; what counts is
the day after the next one, so that there is a day for backfilling. *last week*: the same rules, with the demand of the
same hour a week before in place of the forecast; *true*: with what comes. Training jobs have little rhythm, so beside
them stands *rhythm*: five such queues that are made up, busy in working hours, with noise. Prints Markdown.
"""

import csv
import os
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.tables import markdown
from kopt.core.units import WHOLE_GPU
from kopt.data.jobs.training import open_text
from kopt.policies.reservations.forecast import DAY_HOURS, HOUR_S, WEEK_HOURS, HourlyForecast, forecast
from kopt.policies.reservations.proposals import Outlook, propose

TRACES = {"Philly": "philly_first_half.csv.gz", "ITP": "ms_itp_odd_clusters.csv.gz"}
_FIRST_DAYS, _QUOTA, _NODE, _LEAST_MEAN = 14, 0.75, 8, 4.0
Rule = Callable[[Sequence[float], int], HourlyForecast]
"""A forecast of the week from an hour on, from all hours of a queue; only the true one looks beyond it."""


@dataclass
class Score:
    """GPU-hours, and hours. ``left``: days for which quota is advised in place of a reservation, of ``days``."""

    over_hours: float = 0.0
    met_hours: float = 0.0
    over: float = 0.0
    met: float = 0.0
    reserved: float = 0.0
    used: float = 0.0
    days: int = 0
    left: int = 0

    def row(self, trace: str, queues: int, rule: str) -> list[str]:
        return [
            trace,
            str(queues),
            rule,
            f"{self.over_hours:,.0f}",
            f"{self.met_hours / self.over_hours:.0%}",
            f"{self.met / self.over:.0%}",
            f"{self.reserved:,.0f}",
            f"{1 - self.used / self.reserved:.0%}" if self.reserved else "–",
            f"{self.left / self.days:.0%}",
        ]


def hourly(rows: Sequence[tuple[float, float, int]], hours: int) -> list[float]:
    """The mean GPUs of each hour of jobs (submission, end, GPUs)."""
    # Each job adds its GPUs from one instant to another: differences of the integral over hours.
    edges = [0.0] * (hours + 2)
    for submit_s, end_s, gpus in rows:
        for at_s, amount in ((submit_s, gpus), (end_s, -gpus)):
            at = min(max(at_s / HOUR_S, 0.0), float(hours))
            whole = int(at)
            edges[whole] += amount * (1 - (at - whole))
            edges[whole + 1] += amount * (at - whole)
    result, level = [], 0.0
    for edge in edges[:hours]:
        level += edge
        result.append(max(0.0, level) * WHOLE_GPU)
    return result


def queues_of(path: Path) -> list[list[float]]:
    """Of each virtual cluster or cluster with four GPUs of demand on the average."""
    jobs: dict[str, list[tuple[float, float, int]]] = {}
    with open_text(path) as file:
        for row in csv.DictReader(file):
            submit_s, gpus = float(row["submit_time"]), int(row["gpus"])
            if gpus > 0:
                jobs.setdefault(row["vc"], []).append((submit_s, submit_s + float(row["duration"]), gpus))
    hours = int(max(job[0] for rows in jobs.values() for job in rows) // HOUR_S)
    series = [hourly(rows, hours) for rows in jobs.values()]
    return [each for each in series if sum(each) / len(each) >= _LEAST_MEAN * WHOLE_GPU]


def rhythm(seed: int, weeks: int = 8) -> list[float]:
    """Busy from 8 to 18 on five days of the week."""
    rng = random.Random(seed)
    busy, quiet = rng.randint(16, 48), rng.randint(2, 8)
    return [
        WHOLE_GPU * max(0.0, rng.gauss(level, level / 8))
        for hour in range(weeks * WEEK_HOURS)
        for level in (busy if hour // DAY_HOURS % 7 < 5 and 8 <= hour % DAY_HOURS < 18 else quiet,)
    ]


def kopt(quantile: float) -> Rule:
    return lambda hours, origin: forecast(hours[:origin], quantile, WEEK_HOURS)


def last_week(hours: Sequence[float], origin: int) -> HourlyForecast:
    same = tuple(hours[origin - WEEK_HOURS : origin])
    return HourlyForecast(0.9, same, same, "week", origin // DAY_HOURS)


def true(hours: Sequence[float], origin: int) -> HourlyForecast:
    # The last week of a trace ends before the horizon does; nothing is scored there.
    coming = tuple(hours[origin : origin + WEEK_HOURS])
    coming += coming[-1:] * (WEEK_HOURS - len(coming))
    return HourlyForecast(0.9, coming, coming, "week", origin // DAY_HOURS)


def scored(series: Sequence[Sequence[float]], rule: Rule) -> Score:
    score = Score()
    for hours in series:
        first = _FIRST_DAYS * DAY_HOURS
        for origin in range(first, len(hours) - 2 * DAY_HOURS + 1, DAY_HOURS):
            quota = sorted(hours[origin - first : origin])[int(_QUOTA * first)]
            _add(score, hours, origin, quota, rule(hours, origin))
    return score


def _add(score: Score, hours: Sequence[float], origin: int, quota: float, predicted: HourlyForecast) -> None:
    outlook = Outlook("queue", "pool", 0.0, predicted, [quota] * WEEK_HOURS, [0.0] * WEEK_HOURS, _NODE, 512)
    windows, reason = propose(outlook, DAY_HOURS * HOUR_S, 2 * DAY_HOURS * HOUR_S)
    score.days += 1
    score.left += reason.code == "RESERVATION_ALWAYS_SHORT"
    for hour in range(DAY_HOURS, 2 * DAY_HOURS):
        demand = hours[origin + hour]
        reserved = sum(
            each.gpus * WHOLE_GPU for each in windows if each.start_s <= hour * HOUR_S < each.until_s
        )  # fmt: skip
        over = max(0.0, demand - quota)
        score.over_hours += over > 0
        score.met_hours += over > 0 and reserved >= demand
        score.over += over / WHOLE_GPU
        score.met += min(over, max(0.0, reserved - quota)) / WHOLE_GPU
        score.reserved += reserved / WHOLE_GPU
        score.used += min(demand, reserved) / WHOLE_GPU


def main(arguments: Sequence[str] = ()) -> int:
    folder = Path(os.environ.get("KOPT_DATA_DIR", "")) / "jobs"
    if not folder.is_dir():
        sys.stdout.write("KOPT_DATA_DIR names no folder with jobs/\n")
        return 1
    rules = {"last week": last_week, "kopt p50": kopt(0.5), "kopt p75": kopt(0.75), "kopt p90": kopt(0.9),
             "true": true}  # fmt: skip
    rows = [
        scored(series, rule).row(trace, len(series), name)
        for trace, series in _series(folder)
        for name, rule in rules.items()
    ]
    head = ["trace", "queues", "by", "hours above quota", "covered", "GPU-h above quota covered", "GPU-h reserved",
            "unused", "days left to quota"]  # fmt: skip
    sys.stdout.write(f"{markdown(head, rows)}\n")
    return 0


def _series(folder: Path) -> Iterator[tuple[str, list[list[float]]]]:
    for trace, file in TRACES.items():
        yield trace, queues_of(folder / file)
    yield "rhythm (made up)", [rhythm(seed) for seed in range(5)]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
