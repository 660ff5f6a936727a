"""The same figures by everything that answers: truth, pages, the dashboards' queries, the command line, and cost."""

import json
import logging
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import httpx
from typer.testing import CliRunner

from kopt.cli.main import app
from kopt.core.dashboards.catalogue import dashboards
from tests.day.running import Day
from tests.day.truth import Held, summed

_LOG = logging.getLogger(__name__)
SOURCES = ("page", "dashboards", "command line", "cost")
_OFTEN_S = 3.0


@dataclass(frozen=True)
class Row:
    """A figure: what it really is, from and to where that is not known better, and what answers say. A source that has
    no such figure is not in ``said``; ``lacks`` says why one may lack a part that is known."""

    name: str
    low: float
    high: float
    said: Mapping[str, float | None]
    rounding: float = 1e-6

    @property
    def wrong(self) -> tuple[str, ...]:
        return tuple(
            source
            for source, value in self.said.items()
            if value is None or not self.low - self.rounding <= value <= self.high + self.rounding
        )


def exact(name: str, value: float | None, rounding: float = 1e-6, /, **said: float | None) -> Row:
    known = float("nan") if value is None else value
    return Row(name, known, known, {key.replace("_", " "): each for key, each in said.items()}, rounding)


def within(name: str, low: float, high: float, rounding: float = 1e-6, /, **said: float | None) -> Row:
    return Row(name, low, high, {key.replace("_", " "): each for key, each in said.items()}, rounding)


def settled(rows: Callable[[], list[Row]], longest_s: float) -> list[Row]:
    """Once all agree with the truth, or what they say in the end: nothing changes meanwhile, so that what is late is
    late by that much. Who does not answer in time is asked again."""
    end_s = time.monotonic() + longest_s
    while True:
        is_last = time.monotonic() > end_s
        try:
            answered = rows()
        except (AssertionError, httpx.HTTPError) as error:
            if is_last:
                raise
            _LOG.warning("no answer yet: %r", error)
        else:
            if is_last or not any(row.wrong for row in answered):
                return answered
            _LOG.warning("not settled: %s", ", ".join(row.name for row in answered if row.wrong))
        time.sleep(_OFTEN_S)


def written(rows: list[Row]) -> str:
    """As a table in Markdown; what is wrong stands in bold."""
    lines = ["| figure | truth | " + " | ".join(SOURCES) + " |", "|---" * (2 + len(SOURCES)) + "|"]
    for row in rows:
        truth = f"{row.low:,.4g}" if row.high - row.low < 1e-9 else f"{row.low:,.4g} to {row.high:,.4g}"
        cells = []
        for source in SOURCES:
            value = row.said.get(source)
            shown = "–" if source not in row.said else "none" if value is None else f"{value:,.4g}"
            cells.append(f"**{shown}**" if source in row.wrong else shown)
        lines.append(f"| {row.name} | {truth} | {' | '.join(cells)} |")
    return "\n".join(lines)


def now(day: Day) -> list[Row]:
    """What is true at a moment at which nothing has changed for a while."""
    truth, page = day.truth, _page(day)
    gpus = kopt("gpus", "--kubeconfig", day.kubeconfig)["gpus"]
    held = [(holder["namespace"], holder["milli_gpu"] / 1000) for gpu in gpus for holder in gpu["holders"]]
    states = summed((gpu["state"], 1.0) for gpu in gpus)
    panel = lambda name, title, legend="": asked(day, name, title, legend)  # noqa: E731
    kinds = by_label(day, query_of("cost", "GPUs by what they are charged as"), "kind")
    rows = [
        exact(
            "GPUs",
            truth.installed,
            page=page.get("GPUs"),
            dashboards=panel("cluster", "GPUs"),
            command_line=float(len(gpus)),
            cost=sum(kinds.values()),
        ),
        exact(
            "allocated",
            truth.allocated,
            page=page.get("Held"),
            command_line=sum(amount for _, amount in held),
            cost=kinds.get("charged"),
        ),
        # Nothing but requests and kubelets tells Prometheus who has a GPU; they do not know fractions by annotation.
        exact(
            "allocated by requests, of all",
            (truth.allocated - truth.fractions) / truth.installed,
            dashboards=panel("cluster", "Allocated"),
        ),
        exact(
            "free",
            truth.free,
            page=page.get("Free"),
            command_line=states.get("free", 0.0),
            cost=sum(kinds.get(kind, 0.0) for kind in ("unallocated", "stranded")),
        ),
        exact(
            "unavailable",
            truth.unavailable,
            page=page.get("cannot be had", 0.0),
            dashboards=value(day, "cluster:kopt_gpus_unavailable:sum"),
            command_line=states.get("closed", 0.0),
            cost=kinds.get("unavailable"),
        ),
        exact("busy", truth.busy(truth.fractions), 6e-4, page=page.get("Busy, of those held")),
        exact("busy, where a pod is named", truth.busy(), 1e-6, dashboards=panel("cluster", "Busy")),
        exact("held and idle now", truth.idle_now, page=page.get("Held and idle")),
    ]
    slack_s = 2 * day.times.late_s
    low, high = truth.idle_for(day.times.hour_s, time.time(), slack_s)
    rows.append(within("held and idle for an hour", low, high, dashboards=panel("cluster", "Held and idle")))
    low, high = truth.idle_for(day.times.hour_s * 7 / 6, time.time(), slack_s)
    fires = kopt("alerts", "history", "--prometheus", day.prometheus, "--since=1h")["alerts"]
    firing = summed((each["alert"], 1.0) for each in fires if not each["resolved"])
    known = by_label(day, 'count by (alertname) (ALERTS{alertstate="firing"})', "alertname")
    alert = "KoptGpuIdle"
    rows.append(within(alert, low, high, dashboards=known.get(alert, 0.0), command_line=firing.get(alert, 0.0)))
    alert = "KoptGpuXidFatal"
    xids = float(sum(len(node.xids) for node in day.player.nodes if not node.lost))
    rows.append(exact(alert, xids, dashboards=known.get(alert, 0.0), command_line=firing.get(alert, 0.0)))
    rows.append(exact("alerts that fire", sum(known.values()), page=_page(day, "/alerts").get("Fire now")))
    by_space = summed((each.namespace, each.gpus) for each in truth.now)
    in_queries = by_label(day, query_of("queues", "GPUs by namespace"), "namespace")
    by_requests = summed((each.namespace, each.gpus) for each in truth.now if not each.run.fraction_milli)
    by_command = summed(held)
    for team, space in sorted(day.player.spaces.items()):
        own, requested = by_space.get(space, 0.0), by_requests.get(space, 0.0)
        rows.append(exact(f"allocated, {team}", own, command_line=by_command.get(space, 0.0)))
        rows.append(exact(f"allocated by requests, {team}", requested, dashboards=in_queries.get(space, 0.0)))
    return rows


def so_far(day: Day) -> list[Row]:
    """Sums of the day until a moment at which nothing has changed for a while."""
    truth = day.truth
    costs = kopt("cost", "--by=team", "--since=2h", "--prometheus", day.prometheus)
    until_s = costs["until_ms"] / 1000
    page = _json(day, "/v1/cost", by="team", since="2h")
    # Kubernetes writes times in whole seconds.
    slack = sum(each.gpus for each in truth.held.values()) * 1.5 / 3600 + 2 * truth.installed * 2 / 3600
    used = truth.gpu_hours(until_s)
    teams = truth.gpu_hours_by_team(until_s)
    hours, of_page = ({row["name"]: row["gpu_hours"] for row in each["costs"]} for each in (costs, page))
    paid = [row for row in costs["costs"] if row["name"] in teams]
    price_h = round(sum(row["micro"] for row in paid) / sum(row["gpu_hours"] for row in paid), -2) / 1e6
    charged = sum(hours.get(team, 0.0) for team in teams)
    efficiency = kopt(
        "efficiency", "--prometheus", day.prometheus, "--by=team", "--since=1h", "--kubeconfig", day.kubeconfig
    )
    allocated = {row["name"]: row["allocated_gpu_hours"] for row in efficiency["rows"]}
    rows = [
        _near("GPU-hours", used, slack, cost=charged, page=sum(of_page.get(team, 0.0) for team in teams)),
        _near(
            "cost",
            used * price_h,
            slack * price_h,
            cost=sum(row["micro"] for row in paid) / 1e6,
            page=sum(int(row["micro"]) for row in page["costs"] if row["name"] in teams) / 1e6,
        ),
    ]
    for team, own in sorted(teams.items()):
        rows.append(_near(f"GPU-hours, {team}", own, slack, cost=hours.get(team), page=of_page.get(team)))
    rows += _sampled(day, efficiency, allocated)
    unused = truth.unused_gpu_hours(until_s)
    rows.append(_near("held and not used, GPU-hours", unused, 0.08 * unused + slack, cost=costs["unused_gpu_hours"]))
    return rows


def _sampled(day: Day, efficiency: Mapping[str, Any], allocated: Mapping[str, float]) -> list[Row]:
    """Efficiency looks once a minute: so does the truth here, as late as Prometheus may be."""
    truth, step_s, late_s = day.truth, efficiency["step_s"], day.times.late_s
    last_s = int(time.time() // step_s * step_s)
    moments = [at_s for at_s in range(last_s - 3600, last_s + 1, step_s) if at_s > truth.began_s]

    def bounds(gpus_of: Callable[[Held], float]) -> tuple[float, float]:
        low = high = 0.0
        for at_s in moments:
            times_s = [at_s - late_s + number * late_s / 12 for number in range(14)]
            seen = [truth.at(then_s, gpus_of) for then_s in times_s]
            low, high = low + min(seen) * step_s / 3600, high + max(seen) * step_s / 3600
        # The newest moment may not be recorded yet, and the oldest have been before.
        newest = step_s / 3600 * truth.at(last_s, gpus_of)
        return low - 2 * newest, high + 2 * newest

    rows = []
    for team in sorted(allocated):
        low, high = bounds(lambda each: len(each.run.gpus) * (each.run.team == team))  # noqa: B023
        rows.append(within(f"GPU-hours once a minute, {team}", low, high, command_line=allocated[team]))
    late = [truth.unavailable_at(at_s - late_s) for at_s in moments]
    early = [truth.unavailable_at(at_s) for at_s in moments]
    low, high = (step_s / 3600 * sum(map(of, late, early)) for of in (min, max))
    # The GPU with the XID beside, at most, and again the newest moment.
    more = step_s / 3600 * (len(truth.broken) * len(moments) + 2 * truth.unavailable)
    hours = efficiency["gpu_hours"]["unavailable"]
    rows.append(within("GPU-hours once a minute, unavailable", low - more, high + more, command_line=hours))
    charged = by_label(day, query_of("cost", "GPU-hours of the last 24 hours"), "kind").get("charged")
    rows.append(within("GPU-hours once a minute", *bounds(lambda each: each.gpus), dashboards=charged))
    return rows


def _near(name: str, value: float, slack: float, /, **said: float | None) -> Row:
    return within(name, value - slack, value + slack, **said)


def kopt(*words: object) -> dict[str, Any]:
    done = CliRunner().invoke(app, [*map(str, words), "-o", "json"])
    assert done.exit_code == 0, done.output
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def query_of(dashboard: str, title: str, legend: str = "") -> str:
    """The shipped expression with everything selected."""
    (panel,) = (
        panel for each in dashboards() if each.name == dashboard for panel in each.panels if panel.title == title
    )
    expr = next(query.expr for query in panel.queries if legend in ("", query.legend))
    return re.sub(r"\$(node|namespace|pod|cluster_queue)\b", ".*", expr)


def asked(day: Day, dashboard: str, title: str, legend: str = "") -> float | None:
    return value(day, query_of(dashboard, title, legend))


def value(day: Day, expr: str) -> float | None:
    result = _query(day, expr)
    return float(result[0]["value"][1]) if len(result) == 1 else None


def by_label(day: Day, expr: str, label: str) -> dict[str, float]:
    return {item["metric"].get(label, ""): float(item["value"][1]) for item in _query(day, expr)}


def _query(day: Day, expr: str) -> list[dict[str, Any]]:
    reply = httpx.get(f"{day.prometheus}/api/v1/query", params={"query": expr}, timeout=60, trust_env=False)
    reply.raise_for_status()
    return list(reply.json()["data"]["result"])


def _json(day: Day, path: str, **query: str) -> dict[str, Any]:
    reply = httpx.get(f"{day.pages}{path}", params=query, timeout=60, trust_env=False)
    reply.raise_for_status()
    return dict(reply.json())


_FIGURE = re.compile(r"<dt>([^<]+)</dt><dd><b[^>]*>([^<]+)</b>([^<]*)</dd>")


def _page(day: Day, path: str = "/gpus") -> dict[str, float]:
    """The figures at the top of a page."""
    text = httpx.get(f"{day.pages}{path}", timeout=60, trust_env=False).text
    result = {}
    for name, shown, rest in _FIGURE.findall(text):
        result[name] = _number(shown)
        if closed := re.search(r"and ([\d,]+) that (cannot be had)", rest):
            result[closed[2]] = _number(closed[1])
    return result


def _number(shown: str) -> float:
    text = shown.replace(",", "").strip()
    return float(text.removesuffix("%").strip()) / 100 if text.endswith("%") else float(text)
