"""A report's page, the sum beside it and its totals close, and are what an invoice of every line says."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from kopt.core.cost.metering import GPU_HOUR, Attributes, Idle, Offer
from kopt.core.cost.prices import Price
from kopt.policies.cost.attribution import By, Grouping, Part, attributed
from kopt.policies.cost.invoice import Usage, invoice, total_micro
from kopt.policies.cost.report import Charge, Sums

OFFERS = (Offer("H100-SXM5-80GB", "lambda"), Offer("MI300X", ""), Offer("A100-SXM4-80GB", "own"))
PRICES = {
    OFFERS[0]: Price("H100-SXM5-80GB", "", "", "on-demand", 2_490_001, "USD", 0, "a list"),
    OFFERS[1]: Price("MI300X", "", "", "on-demand", 1_999_999, "EUR", 0, "a contract"),
}
PODS = {
    f"uid-{number}": Attributes(f"space-{number % 3}", f"pod-{number % 7}", f"jobs/{number % 4}")
    for number in range(12)
}

usages = st.builds(
    lambda subject, offer, used: Usage(subject, "n", offer, PRICES.get(offer), used),
    st.sampled_from([*PODS, "uid-unknown", *(kind.subject for kind in Idle)]),
    st.sampled_from(OFFERS),
    st.integers(0, 40 * GPU_HOUR),
)


def charges(lines: Sequence[Usage], grouping: Grouping) -> list[Charge]:
    result = []
    for usage, line in zip(lines, invoice(lines), strict=True):
        part = Part.IDLE if usage.subject.startswith("idle:") else Part.PODS
        steps = (-1, -1)
        name = grouping.name(line)
        result.append(Charge(name, part, usage.subject, usage.offer, usage.price, usage.used, 1, *steps))
    return result


@given(st.lists(usages, max_size=30), st.sampled_from([By.NAMESPACE, By.WORKLOAD, By.POD, By.MODEL]))
def test_it_says_what_an_invoice_of_every_line_does(lines: list[Usage], by: By) -> None:
    grouping = Grouping(PODS, {}, by)
    page, rest, count = Sums(charges(lines, grouping), by).page(0, 0)
    assert list(page) == attributed(invoice(lines), grouping)
    assert (rest, count) == ((), sum(row.part is Part.PODS for row in page))


@given(st.lists(usages, max_size=30), st.integers(0, 9), st.integers(1, 9))
def test_a_page_and_the_sum_beside_it_close(lines: list[Usage], offset: int, limit: int) -> None:
    sums = Sums(charges(lines, Grouping(PODS, {}, By.POD)), By.POD)
    page, rest, count = sums.page(offset, limit)
    pods = [row for row in page if row.part is Part.PODS]
    assert len(pods) == max(0, min(limit, count - offset))
    assert sum(row.used for row in (*page, *rest)) == sums.used == sum(usage.used for usage in lines)
    assert sum(row.unpriced for row in (*page, *rest)) == sum(usage.used for usage in lines if usage.price is None)
    micro: dict[str, int] = {}
    for row in (*page, *rest):
        if row.currency:
            micro[row.currency] = micro.get(row.currency, 0) + row.micro
    assert micro == sums.micro == total_micro(invoice(lines))
    every = [row for start in range(0, count, limit) for row in sums.page(start, limit)[0] if row.part is Part.PODS]
    assert every == [row for row in sums.page(0, 0)[0] if row.part is Part.PODS]
