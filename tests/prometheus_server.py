"""A real Prometheus on loopback (Debian package ``prometheus``)."""

import shutil
import subprocess
import urllib.request
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from controlplane.processes import free_port, wait_for

if TYPE_CHECKING:
    from kopt.data.demand.table import DemandSeries

_NO_SCRAPES = "global: {scrape_interval: 1h}\n"


class RunningPrometheus:
    """A Prometheus process in ``folder``; ``url`` answers once the constructor returns.

    ``history`` is OpenMetrics text of what it has scraped before, ``configuration`` its prometheus.yml.
    """

    def __init__(self, folder: Path, history: str = "", configuration: str = _NO_SCRAPES) -> None:
        for binary in ("prometheus", "promtool"):
            if shutil.which(binary) is None:
                pytest.skip(f"{binary} is not installed (Debian package prometheus)")
        (folder / "prometheus.yml").write_text(configuration)
        if history:
            (folder / "history.txt").write_text(history)
            blocks = ["promtool", "tsdb", "create-blocks-from", "--max-block-duration=512h"]
            # Blocks of two hours, the default, take minutes where weeks are written.
            blocks += ["openmetrics", "history.txt", "data"]
            subprocess.run(blocks, cwd=folder, check=True, capture_output=True, timeout=120)
        address = f"127.0.0.1:{free_port()}"
        self.url = f"http://{address}"
        options = [
            "--config.file=prometheus.yml",
            f"--web.listen-address={address}",
            "--storage.tsdb.path=data",
            "--storage.tsdb.retention.time=100y",
        ]
        with (folder / "log").open("wb") as log:
            self._process = subprocess.Popen(["prometheus", *options], cwd=folder, stdout=log, stderr=log)
        try:
            wait_for(self._ready, what="Prometheus is ready")
        except BaseException:
            self.stop()
            raise

    def _ready(self) -> bool:
        assert self._process.poll() is None, "Prometheus has ended"
        with urllib.request.urlopen(f"{self.url}/-/ready", timeout=1):
            return True

    def stop(self) -> None:
        """Kills the process, as a crash would."""
        self._process.kill()
        self._process.wait()


def counters(series: "Iterable[DemandSeries]") -> str:
    """Demand as OpenMetrics counters with a sample a minute and none inside a gap."""
    lines = ["# TYPE requests counter"]
    for one in series:
        total = 0.0
        per_step = max(1, one.step_s // 60)
        lines.append(f'requests_total{{service="{one.name}"}} 0 {one.start_s:.0f}')
        for begin, value in zip(one.times_s, one.value, strict=True):
            for part in range(1, per_step + 1):
                # Inside a gap nothing is scraped; a counter goes on without being seen.
                if value == value:
                    at, count = begin + part * one.step_s / per_step, total + value * part / per_step
                    lines.append(f'requests_total{{service="{one.name}"}} {float(count)!r} {at:.0f}')
            total += 0.0 if value != value else value
    return "\n".join([*lines, "# EOF", ""])
