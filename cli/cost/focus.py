"""CSV with the columns of FOCUS 1.0 (FinOps Open Cost and Usage Specification), a line for each subject and day."""

import csv
import itertools
import json
from collections.abc import Iterator, Mapping
from pathlib import Path

from kopt.cli.cost.reading import Source
from kopt.controllers.meter.store import Window
from kopt.core.cost.budgets import Period
from kopt.core.cost.metering import GPU_HOUR, Attributes, idle_of
from kopt.core.times import stamp
from kopt.policies.cost.budgets import window_of
from kopt.policies.cost.invoice import Line, invoice

COLUMNS = (
    "BilledCost",
    "BillingAccountId",
    "BillingAccountName",
    "BillingCurrency",
    "BillingPeriodEnd",
    "BillingPeriodStart",
    "ChargeCategory",
    "ChargeClass",
    "ChargeDescription",
    "ChargeFrequency",
    "ChargePeriodEnd",
    "ChargePeriodStart",
    "ConsumedQuantity",
    "ConsumedUnit",
    "ContractedCost",
    "ContractedUnitPrice",
    "EffectiveCost",
    "InvoiceIssuerName",
    "ListCost",
    "ListUnitPrice",
    "PricingCategory",
    "PricingQuantity",
    "PricingUnit",
    "ProviderName",
    "PublisherName",
    "RegionId",
    "ResourceId",
    "ResourceName",
    "ResourceType",
    "ServiceCategory",
    "ServiceName",
    "SkuId",
    "SubAccountId",
    "SubAccountName",
    "Tags",
)
_CATEGORIES = {"spot": "Dynamic", "reserved": "Committed"}
_TRIGGERS = ("=", "+", "-", "@", "\t", "\r")


def write(source: Source, path: Path) -> int:
    """How many lines. Raises OSError, and DatabaseError."""
    attributes, nodes = source.store.attributes(), source.store.nodes()
    number = 0
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        for day in days(source.window):
            for line in invoice(source.store.usages(day, source.book)):
                row = _line(line, day, attributes.get(line.usage.subject), nodes)
                writer.writerow({name: _harmless(value) for name, value in row.items()})
                number += 1
    return number


def days(window: Window) -> Iterator[Window]:
    """The days of a window, UTC's; the first and the last may be parts."""
    bounds = [window.start_ms]
    while bounds[-1] < window.end_ms:
        bounds.append(min(window.end_ms, window_of(Period.DAY, bounds[-1])[1]))
    return itertools.starmap(Window, itertools.pairwise(bounds))


def _line(line: Line, day: Window, pod: Attributes | None, nodes: Mapping[str, str]) -> dict[str, str]:
    usage, offer, price = line.usage, line.usage.offer, line.usage.price
    idle = idle_of(usage.subject)
    amount = "" if line.micro is None else f"{line.micro / 1_000_000:.6f}"
    unit_price = "" if price is None else f"{price.micro_per_gpu_hour / 1_000_000:.6f}"
    hours = f"{usage.used / GPU_HOUR:.9f}"
    month = window_of(Period.MONTH, day.start_ms)
    node = nodes.get(usage.node_uid, usage.node_uid)
    what = f"{idle.value} GPUs of {node}" if idle is not None else f"GPUs of {node}"
    namespace = pod.namespace if pod is not None else ""
    tags = {} if pod is None else {**pod.labels, "workload": pod.workload, "queue": pod.queue}
    tags |= {"node": node} | ({"idle": idle.value} if idle is not None else {})
    return {
        "BilledCost": amount,
        "BillingAccountId": offer.provider or "own",
        "BillingAccountName": offer.provider or "own",
        "BillingCurrency": price.currency if price is not None else "",
        "BillingPeriodEnd": stamp(month[1] / 1000),
        "BillingPeriodStart": stamp(month[0] / 1000),
        "ChargeCategory": "Usage",
        "ChargeClass": "",
        "ChargeDescription": f"{what} ({offer.model}, {offer.capacity})",
        "ChargeFrequency": "Usage-Based",
        "ChargePeriodEnd": stamp(day.end_ms / 1000),
        "ChargePeriodStart": stamp(day.start_ms / 1000),
        "ConsumedQuantity": hours,
        "ConsumedUnit": "GPU Hours",
        "ContractedCost": amount,
        "ContractedUnitPrice": unit_price,
        "EffectiveCost": amount,
        "InvoiceIssuerName": offer.provider or "own",
        "ListCost": amount,
        "ListUnitPrice": unit_price,
        "PricingCategory": _CATEGORIES.get(offer.capacity, "Standard"),
        "PricingQuantity": hours,
        "PricingUnit": "GPU Hours",
        "ProviderName": offer.provider or "own",
        "PublisherName": "kaiwo-optimizer",
        "RegionId": offer.region,
        "ResourceId": usage.subject,
        "ResourceName": f"{pod.namespace}/{pod.pod}" if pod is not None else what,
        "ResourceType": "Pod" if idle is None else "Idle GPU",
        "ServiceCategory": "Compute",
        "ServiceName": "GPU",
        "SkuId": "|".join((offer.model, offer.provider, offer.region, offer.capacity)),
        "SubAccountId": namespace,
        "SubAccountName": namespace,
        "Tags": json.dumps(tags, sort_keys=True),
    }


def _harmless(value: str) -> str:
    """Names are others': none may begin as a formula."""
    return f"'{value}" if value.startswith(_TRIGGERS) else value
