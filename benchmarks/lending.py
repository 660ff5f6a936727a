"""Lending: services of the demand data lend GPUs to jobs of the Philly trace; every rule, every lead time.

Forecasts are out of fold, as in ``benchmarks demand`` (and from its cache): no service is forecast by a model that saw
its source. Every service is a pool of 64 GPUs that its 99.9 % demand fills; the first level of caution and the hold
were chosen on these services. Needs KOPT_DATA_DIR.

    python -m benchmarks.lending [--workers N]
"""

import argparse
import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from benchmarks.checkpoint_corpus.manifest import RECORDS
from benchmarks.demand import out_of_fold, read_services
from benchmarks.demand_baselines import QUANTILES
from benchmarks.tables import markdown
from kopt.data.demand.rolling import Forecasts
from kopt.data.jobs.training import read_jobs
from kopt.features.demand import HORIZONS_S
from kopt.simulator.lending.study import RULES, LendingOutcome, LendingSetup, study
from kopt.simulator.preemption.behaviour import read_manners
from kopt.training.demand.evaluate import scored_origins

TRACE = "philly_first_half.csv.gz"
SHARE = {300: 0.77, 1800: 0.67, 3600: 0.62}
VIOLATION, GAIN = 0.01, 0.25
_RIVAL = "reactive, matched"


def table(found: Sequence[LendingOutcome]) -> str:
    head = ("lead", "rule", "lent", "of the oracle's", "short", "useful GPU-hours", "lost", "evictions, native", "torn")
    rows = []
    for lead_s in HORIZONS_S:
        for rule in RULES:
            mine = [one for one in found if (one.lead_s, one.rule) == (lead_s, rule)]
            gains = [one.gains for one in mine]
            rows.append(
                (
                    f"{lead_s // 60} min",
                    rule,
                    _mean((one.lent for one in mine), 3),
                    _mean((one.share_of_oracle for one in mine), 3),
                    _mean((one.violation for one in mine), 4),
                    _mean((one.gained for one in gains), 0),
                    _mean((one.lost for one in gains), 0),
                    f"{_mean((one.evictions for one in gains), 0)}, {_mean((one.native for one in gains), 0)}",
                    str(sum(one.torn for one in gains)),
                )
            )
    return markdown(head, rows)


def _mean(values: Iterable[float], digits: int) -> str:
    return f"{np.mean(list(values)):,.{digits}f}"


def against_targets(found: Sequence[LendingOutcome]) -> str:
    rows: list[tuple[str, ...]] = []
    for lead_s in HORIZONS_S:
        ours, rival = ([one for one in found if (one.lead_s, one.rule) == (lead_s, rule)] for rule in ("kopt", _RIVAL))
        share, short = (
            float(np.mean(values))
            for values in zip(*((one.share_of_oracle, one.violation) for one in ours), strict=True)
        )
        gained, base = (sum(one.gains.gained for one in each) for each in (ours, rival))
        for label, value, text, held in (
            ("share of the oracle's lending", share, f">= {SHARE[lead_s]}", share >= SHARE[lead_s]),
            ("time that GPUs are missing", short, f"<= {VIOLATION}", short <= VIOLATION),
            (f"useful GPU-hours beside '{_RIVAL}'", gained / base - 1, f">= +{GAIN:.0%}", gained / base - 1 >= GAIN),
        ):
            rows.append((label, f"{lead_s // 60} min", f"{value:.4f}", text, "yes" if held else "NO"))
    rows.sort(key=lambda row: row[0])
    return markdown(("figure", "lead", "measured", "target", "held"), rows)


def main(arguments: Sequence[str] = ()) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args(arguments)
    data = Path(os.environ.get("KOPT_DATA_DIR", ""))
    if not (data / "demand" / "demand.parquet").exists():
        print("KOPT_DATA_DIR names no folder with demand/demand.parquet: nothing measured")
        return int(os.environ.get("KOPT_REQUIRE_DATA") == "1")
    services = read_services(data / "demand")
    values = out_of_fold(services, Path(os.environ.get("KOPT_HOME", ".kopt")) / "bench")
    forecasts = []
    for one in services.series:
        origins = scored_origins(one, HORIZONS_S)
        forecasts.append(Forecasts(one.name, origins, HORIZONS_S, QUANTILES, values[one.name][origins]))
    setup = LendingSetup(read_jobs(data / "jobs" / TRACE), read_manners(RECORDS))
    found = study(setup, services.series, forecasts, HORIZONS_S, options.workers)
    print(f"{len(services.series)} services, {TRACE}\n\n{against_targets(found)}\n\n{table(found)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
