"""Bytes that network cards have sent and received, of ``/sys/class/infiniband`` and ``/sys/class/net``.

Sources: the kernel's Documentation/ABI/stable/sysfs-class-infiniband (``port_xmit_data`` and ``port_rcv_data`` count
octets divided by four, over all lanes) and Documentation/ABI/testing/sysfs-class-net-statistics.
"""

import re
from collections.abc import Mapping
from typing import Any

ByteCounters = Mapping[tuple[str, str], int]
"""Bytes by card and direction."""
_INFINIBAND = re.compile(r"infiniband/([\w.-]{1,64})/ports/\d{1,3}/counters/port_(xmit|rcv)_data$", re.ASCII)
_NET = re.compile(r"net/([\w.-]{1,64})/statistics/(tx|rx)_bytes$", re.ASCII)
_WORD_BYTES = 4
_MOST_DIGITS = 20


def parse_counters(files: Any) -> ByteCounters:
    """Of paths and contents; the ports of a card are added. Raises ValueError for what is no such counter."""
    if not isinstance(files, Mapping):
        raise ValueError("counters are an object of paths and contents")
    result: dict[tuple[str, str], int] = {}
    for path, text in files.items():
        infiniband, net = _INFINIBAND.fullmatch(path), _NET.fullmatch(path)
        match = infiniband or net
        digits = text.strip() if isinstance(text, str) else ""
        if match is None or not (digits.isascii() and digits.isdigit() and len(digits) <= _MOST_DIGITS):
            raise ValueError(f"{path[:80]} is no counter of bytes")
        key = match[1], "sent" if match[2] in ("xmit", "tx") else "received"
        result[key] = result.get(key, 0) + int(digits) * (_WORD_BYTES if infiniband else 1)
    return result


def rates_gbps(before: ByteCounters, after: ByteCounters, seconds: float) -> dict[str, float]:
    """GB/s of the busier direction, by card. A counter that began anew tells nothing of the time between."""
    if seconds <= 0:
        return {}
    rates: dict[str, float] = {}
    for (card, direction), count in after.items():
        transferred = count - before.get((card, direction), count)
        if transferred >= 0:
            rates[card] = max(rates.get(card, 0.0), transferred / seconds / 1e9)
    return rates
