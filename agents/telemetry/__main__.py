"""The process behind ``kopt agent telemetry``, which it starts with its options as JSON."""

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kopt.agents.runtime.running import log_to_stderr
from kopt.agents.telemetry.process import ProcessSettings, serve
from kopt.agents.telemetry.sources import ExporterSource, ProgramSource, Source, ToolSource
from kopt.core.untrusted import decode


def settings_of(options: dict[str, Any]) -> ProcessSettings:
    """Of what the command line has checked."""

    def sources() -> Sequence[Source]:
        limit_s = options["timeout_s"]
        if options["exporters"]:
            return [ExporterSource(url, options["node"], limit_s) for url in options["exporters"]]
        return [
            ToolSource(options["tools"]) if name == "amd-smi" else ProgramSource(name, limit_s)
            for name in options["sources"]
        ]

    return ProcessSettings(
        options["node"],
        sources,
        Path(options["socket"]) if options["socket"] else None,
        options["interval_s"],
        options["stale_s"],
        options["most_series"],
        Path(options["root"]),
        Path(options["kernel_log"]) if options["kernel_log"] else None,
        options["host"],
        options["port"],
        options["xid_window_s"],
        options["fault_interval_s"],
    )


if __name__ == "__main__":
    log_to_stderr()
    asyncio.run(serve(settings_of(decode(sys.argv[1]))))
