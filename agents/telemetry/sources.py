"""Where readings come from: a process that reads NVML or AMD's library, or an exporter that runs on the node already.

Whatever hangs is given up after a limit, and costs no more than that: a process that does not end, not even when it is
killed (it waits in the driver), is not started again before it has ended.
"""

import asyncio
import contextlib
import os
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from typing import Protocol

from kopt.agents.topology.commands import Limits, Tool
from kopt.agents.topology.readings import CollectorError
from kopt.core.untrusted import decode
from kopt.formats.gpu_metrics import MetricsError, amd_telemetry
from kopt.formats.gpu_metrics.device_reading import DeviceReading, readings_of
from kopt.formats.gpu_metrics.exported import device_readings
from kopt.formats.gpu_metrics.exporters import Series

_MOST_BYTES = 8 << 20
_ENDING_S = 2.0
_ABSENT = 3
PROGRAMS = {"nvml": "kopt.agents.telemetry.nvml", "amdsmi": "kopt.agents.telemetry.amdsmi"}


class TelemetryError(Exception):
    """No reading; ``reason`` is one word for a metric, ``absent`` where the node has no such hardware."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class Source(Protocol):
    """One way to read the node's GPUs."""

    name: str

    async def read(self) -> tuple[DeviceReading, ...]:
        """Within a limit of time. Raises TelemetryError."""

    async def read_xids(self) -> tuple[DeviceReading, ...]:
        """What is known of XIDs since the last reading, and nothing else: of GPUs that had any, with their counts so
        far. Costs far less than a reading; empty where they come no sooner. Raises TelemetryError."""

    async def close(self) -> None:
        """Leaves nothing behind but what cannot be killed."""


class ProgramSource:
    """A process that prints one line of JSON for each line that it is sent."""

    def __init__(self, name: str, limit_s: float = 5.0, command: Sequence[str] | None = None) -> None:
        self.name = name
        self._limit_s = limit_s
        self._command = tuple(command or (sys.executable, "-P", "-m", PROGRAMS[name]))
        self._process: asyncio.subprocess.Process | None = None
        self._stuck: asyncio.subprocess.Process | None = None

    async def read(self) -> tuple[DeviceReading, ...]:
        return await self._answer(b"\n")

    async def read_xids(self) -> tuple[DeviceReading, ...]:
        # One that was just started listens to no GPU before its first reading.
        return await self._answer(b"xids\n") if self.name == "nvml" and self._process is not None else ()

    async def _answer(self, question: bytes) -> tuple[DeviceReading, ...]:
        if self._stuck is not None:
            if self._stuck.returncode is None:
                raise TelemetryError("stuck", "the reading process does not end, not even when killed")
            self._stuck = None
        try:
            async with asyncio.timeout(self._limit_s):
                process = self._process = self._process or await self._start()
                line = await self._ask(process, question)
                if not line.endswith(b"\n"):
                    raise await self._ended(process)
            return readings_of(decode(line.decode(errors="replace"), longest_chars=_MOST_BYTES))
        except TimeoutError as error:
            await self.close()
            raise TelemetryError("timeout", f"no reading within {self._limit_s:g} s") from error
        except ValueError as error:
            await self.close()
            raise TelemetryError("damaged", f"a reading that is none: {error}") from error

    async def _start(self) -> asyncio.subprocess.Process:
        pipe = asyncio.subprocess.PIPE
        try:
            return await asyncio.create_subprocess_exec(
                *self._command,
                stdin=pipe,
                stdout=pipe,
                stderr=pipe,
                limit=_MOST_BYTES,
                start_new_session=True,
                env={**os.environ, "LC_ALL": "C"},
            )
        except OSError as error:
            raise TelemetryError("failed", f"cannot be started: {error.strerror}") from error

    @staticmethod
    async def _ask(process: asyncio.subprocess.Process, question: bytes) -> bytes:
        assert process.stdin is not None
        assert process.stdout is not None
        with contextlib.suppress(ConnectionError):
            process.stdin.write(question)
            await process.stdin.drain()
        return await process.stdout.readline()

    async def _ended(self, process: asyncio.subprocess.Process) -> TelemetryError:
        assert process.stderr is not None
        reason = (await process.stderr.read(2000)).decode(errors="replace").strip()[-300:]
        status = await process.wait()
        self._process = None
        return TelemetryError("absent" if status == _ABSENT else "failed", reason or f"ended with {status}")

    async def close(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, 9)
        try:
            async with asyncio.timeout(_ENDING_S):
                await process.wait()
        except TimeoutError:
            self._stuck = process
        finally:
            # Pipes of what does not end would stay open with it; asyncio has no public word for this.
            process._transport.close()  # type: ignore[attr-defined]


class ToolSource:
    """The tool ``amd-smi``, where its library is not there: a minute apart, since each call costs half a second."""

    name = "amd-smi"

    def __init__(self, path: str = "", limit_s: float = 20.0, every_s: float = 60.0) -> None:
        limits = Limits(time_s=limit_s, path=path)
        asked = (amd_telemetry.METRIC_ARGUMENTS, amd_telemetry.LIST_ARGUMENTS, amd_telemetry.STATIC_ARGUMENTS)
        self._metric, *self._about = (Tool("amd-smi", ("amd-smi", *arguments), limits) for arguments in asked)
        self._every_s = every_s
        self._read_s = float("-inf")
        self._last: tuple[DeviceReading, ...] = ()

    async def read(self) -> tuple[DeviceReading, ...]:
        if time.monotonic() - self._read_s < self._every_s:
            return self._last
        try:
            text = await self._metric.collect()
            about = [await self._described(tool) for tool in self._about]
            self._last = amd_telemetry.parse(text, *about)
        except CollectorError as error:
            raise TelemetryError(str(error.problem), str(error)) from error
        except MetricsError as error:
            raise TelemetryError("damaged", str(error)) from error
        self._read_s = time.monotonic()
        return self._last

    async def read_xids(self) -> tuple[DeviceReading, ...]:
        """AMD's GPUs have none."""
        return ()

    @staticmethod
    async def _described(tool: Tool) -> str:
        """Empty where this release does not say: devices are known by their numbers then."""
        with contextlib.suppress(CollectorError):
            return await tool.collect()
        return ""

    async def close(self) -> None:
        """Nothing is held."""


class ExporterSource:
    """``/metrics`` of NVIDIA's dcgm-exporter or AMD's device-metrics-exporter, which have to be those of ``node``."""

    name = "exporter"

    def __init__(self, url: str, node: str, limit_s: float = 5.0) -> None:
        self._url, self._node, self._limit_s = url, node, limit_s
        self._counters: dict[tuple[str, str, str], float] = {}
        self._read_s = 0.0
        # Proxies of the environment are for what lies outside of the cluster.
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirects())

    async def read(self) -> tuple[DeviceReading, ...]:
        text = await asyncio.to_thread(self._fetch)
        try:
            series, now_s = samples(text), time.monotonic()
            exported = device_readings(series, self._counters, now_s - self._read_s)
        except (ValueError, KeyError, IndexError) as error:
            raise TelemetryError("damaged", f"{self._url} has no metrics of GPUs: {error}") from error
        if exported.nodes - {self._node}:
            others = ", ".join(sorted(exported.nodes - {self._node}))[:200]
            message = (
                f"{self._url} speaks of {others}, not of {self._node}: its Service needs internalTrafficPolicy Local"
            )
            raise TelemetryError("other-node", message)
        self._counters, self._read_s = exported.counters, now_s
        return tuple(exported.devices)

    async def read_xids(self) -> tuple[DeviceReading, ...]:
        """An exporter has what it gathered last; to ask it more often brings nothing sooner."""
        return ()

    def _fetch(self) -> str:
        """In a thread, which ends by itself: each wait has a limit, and all together."""
        end_s = time.monotonic() + self._limit_s
        body = bytearray()
        try:
            with self._opener.open(self._url, timeout=self._limit_s) as answer:
                while chunk := answer.read1(1 << 16):
                    body += chunk
                    if len(body) > _MOST_BYTES:
                        raise TelemetryError("too-large", f"{self._url} answers more than {_MOST_BYTES >> 20} MiB")
                    if time.monotonic() > end_s:
                        raise TelemetryError("timeout", f"{self._url} does not end within {self._limit_s:g} s")
        except (OSError, ValueError, urllib.error.HTTPError) as error:
            reason = "timeout" if isinstance(error, TimeoutError) else "unreachable"
            raise TelemetryError(reason, f"{self._url}: {error}") from error
        return body.decode(errors="replace")

    async def close(self) -> None:
        """Nothing is held."""


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_arguments: object, **_named: object) -> None:
        """An exporter sends nobody elsewhere."""


def samples(text: str) -> list[Series]:
    """Of exposition text. Raises ValueError."""
    from prometheus_client.parser import text_string_to_metric_families

    # The parser adds _total to counters, as OpenMetrics wants it; dcgm-exporter's have none.
    written = {line.partition("{")[0].partition(" ")[0] for line in text.splitlines()}
    return [
        (sample.name if sample.name in written else sample.name.removesuffix("_total"), sample.labels, sample.value)
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    ]
