"""The report that nccl-tests write as JSON (``-J FILE``, from 2.17 on).

Source: ``src/util.cu`` of nccl-tests. It says what the log of the same run says, so that it is read as that log, with
the same checks. Of a process that drives several GPUs it lists the first alone.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kopt.core.hardware.collectives import CollectiveLog
from kopt.formats.topology.documents import Document, whole
from kopt.formats.topology.nccl import tests
from kopt.formats.topology.parser import JsonParser
from kopt.formats.topology.text import FormatError, source_of

TOOL = "nccl-tests -J"
_PROGRAM = re.compile(r"(\w+?)_perf(?:_mpi)?\s*$")
_MOST_RANKS = 1 << 20
_HALVES = ("out_of_place", "in_place")


def recognises(document: Document) -> bool:
    value = document.value
    return isinstance(value, dict) and {"config", "devices", "args", "nccl_version"} <= set(value)


def parse(document: Document) -> CollectiveLog:
    """Raises FormatError, also for a report that ends before its average."""
    value = document.value
    if not isinstance(value.get("results"), list) or not value["results"] or "average_bus_bandwidth" not in value:
        raise document.error("this report of nccl-tests has no results and average: the run did not end")
    try:
        log = "\n".join(" ".join(line.split()) for line in _log(value)) + "\n"
    except FormatError:
        raise
    except (KeyError, TypeError, AttributeError, ValueError, OverflowError) as error:
        raise document.error(f"this report of nccl-tests is not as the tool writes it ({error!r:.80})") from error
    try:
        return tests.parse(source_of(log))
    except FormatError as error:
        # The lines that it counts are those of the log, which nobody sees.
        raise document.error(re.sub(r"^line \d+(?:, column \d+)?: ", "", str(error))) from error


def _log(value: Mapping[str, Any]) -> Iterator[str]:
    config, results = value["config"], value["results"]
    threads, gpus = whole(config["nthreads"], "nthreads"), whole(config["ngpus"], "ngpus")
    step, unit = (config["step_factor"], "factor") if "step_factor" in config else (config["step_bytes"], "bytes")
    program = next((match[1] for word in value["args"][:1] if (match := _PROGRAM.search(word))), "")
    if program:
        yield f"# Collective test starting: {program}_perf"
    # The report has the size asked for; what memory allowed is that of the last row, which the average vouches for.
    sizes = f"minBytes {config['minimum_bytes']} maxBytes {results[-1]['size']}"
    yield f"# nThread {threads} nGpus {gpus} {sizes} step: {step}({unit})"
    yield from _ranks(value["devices"], (threads or 1) * (gpus or 1))
    yield f"# size count type redop root {' time algbw busbw #wrong' * 2}"
    for row in results:
        halves = [_half(row.get(name)) for name in _HALVES]
        yield " ".join([f"{row['size']} {row['count']} {row['type']} {row['redop']} {row['root']}", *halves])
    yield f"# Avg bus bandwidth : {value['average_bus_bandwidth']['bandwidth']}"


def _ranks(devices: Sequence[Mapping[str, Any]], each: int) -> Iterator[str]:
    if each * len(devices) > _MOST_RANKS:
        raise FormatError(f"{each * len(devices)} ranks in one report")
    several = each if _is_first(devices, each) else 1
    for device in devices:
        for other in range(several):
            pci = f"[{device['device_hex']}]" if other == 0 else "[0x00]"
            numbers = f"Rank {device['rank'] + other} Group {device['group']} Pid {device['pid']}"
            where = f"on {device['hostname']} device {device['device'] + other}"
            yield f"# {numbers} {where} {pci} {device['device_info']}"


def _is_first(devices: Sequence[Mapping[str, Any]], each: int) -> bool:
    """Do the ranks listed lie as far apart as a process has GPUs?"""
    return all(device["rank"] == number * each for number, device in enumerate(devices))


def _half(half: Mapping[str, Any] | None) -> str:
    if half is None:
        return "N/A N/A N/A N/A"
    if "time" not in half:
        raise FormatError("times of the processor (-C) and not of the GPUs: they measure no bandwidth")
    wrong = "N/A" if half["nwrong"] is None else f"{float(half['nwrong']):.0f}"
    return f"{half['time']} {half['alg_bw']} {half['bus_bw']} {wrong}"


PARSER = JsonParser((TOOL,), recognises, parse)
