"""Amounts are integers that sum to the total, whatever they are grouped by; prices have dates."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kopt.core.cost.budgets import Budget, BudgetAction, BudgetException, BudgetState, Period
from kopt.core.cost.metering import GPU_HOUR, Attributes, Offer
from kopt.core.cost.prices import Price, PriceBook, PriceError, price_book, shipped_prices
from kopt.policies.cost.attribution import By, Grouping, Part, attributed, unused_by_row
from kopt.policies.cost.budgets import applies, budget_decision, window_of
from kopt.policies.cost.invoice import Usage, invoice, total_micro

H100 = Offer("H100-SXM5-80GB", "lambda")
DAY_MS = 86_400_000


def price(micro: int, currency: str = "USD") -> Price:
    return Price(H100.model, "", "", "on-demand", micro, currency, 0, "a test")


_USAGES = st.lists(
    st.builds(
        Usage,
        st.sampled_from(["a", "b", "c", "idle:stranded", "idle:unallocated"]),
        st.sampled_from(["n1", "n2"]),
        st.just(H100),
        st.sampled_from([price(3_990_000), price(1), price(333_333), price(7, "EUR"), None]),
        st.integers(0, 10**15),
    ),
    max_size=30,
)


@given(usages=_USAGES)
def test_lines_sum_to_the_exact_total_rounded_once(usages: list[Usage]) -> None:
    lines = invoice(usages)
    totals = total_micro(lines)
    for currency in ("USD", "EUR"):
        exact = sum(u.used * u.price.micro_per_gpu_hour for u in usages if u.price and u.price.currency == currency)
        assert totals.get(currency, 0) == (2 * exact + GPU_HOUR) // (2 * GPU_HOUR)
    for line in lines:
        if line.usage.price is None:
            assert line.micro is None
        else:
            assert line.micro is not None
            assert abs(line.micro * GPU_HOUR - line.usage.used * line.usage.price.micro_per_gpu_hour) < GPU_HOUR


@given(usages=_USAGES, label=st.sampled_from(["", "project"]))
def test_every_grouping_has_the_same_total(usages: list[Usage], label: str) -> None:
    """As opencost's have not (opencost#2901, #2029)."""
    lines = invoice(usages)
    attributes = {"a": Attributes("ml", "a-0", "jobs/a", "gpus", {"team": "vision"}), "b": Attributes("web", "b-0")}
    for by in By:
        rows = attributed(lines, Grouping(attributes, {"n1": "node-1"}, by, label))
        for currency, total in total_micro(lines).items():
            assert sum(row.micro for row in rows if row.currency == currency) == total
        assert sum(row.used for row in rows) == sum(usage.used for usage in usages)
        idle = sum(row.used for row in rows if row.part is Part.IDLE)
        assert idle == sum(usage.used for usage in usages if usage.subject.startswith("idle:"))


def test_what_was_allocated_and_not_used() -> None:
    lines = invoice([Usage(uid, "n", H100, price(10**6), GPU_HOUR) for uid in ("a", "b", "c", "idle:stranded")])
    grouping = Grouping({uid: Attributes("ml", uid) for uid in "abc"}, {})
    ((key, unused),) = unused_by_row(lines, grouping, {"a": 0.25, "b": 1.0}).items()
    assert key == ("ml", "USD")
    assert (unused.used, unused.micro, unused.unmeasured) == (GPU_HOUR * 3 // 4, 750_000, GPU_HOUR)


def test_what_has_no_team_keeps_a_row() -> None:
    lines = invoice([Usage("a", "n", H100, price(10**6), GPU_HOUR), Usage("x", "n", H100, price(10**6), GPU_HOUR)])
    grouping = Grouping({"a": Attributes("ml", "a", labels={"team": "vision"})}, {}, By.TEAM)
    assert [row.name for row in attributed(lines, grouping)] == ["vision", "(unattributed)"]


BOOK = """
[[price]]
model = "h100"
per_gpu_hour = 3.0
from = 2026-01-01
source = "contract"

[[price]]
model = "h100"
per_gpu_hour = 2.5
from = 2026-02-01
source = "contract"

[[price]]
model = "h100"
provider = "aws"
region = "us-east-1"
per_gpu_hour = 4.0
source = "list"
"""


def test_the_price_that_was_valid_then_and_the_most_particular_one() -> None:
    book = price_book(BOOK)
    january, february = 1767225600000, 1769904000000
    own, aws = Offer(H100.model, "own"), Offer(H100.model, "aws", "us-east-1")
    values = [getattr(book.of(own, at), "micro_per_gpu_hour", None) for at in (january - 1, january, february)]
    assert values == [None, 3_000_000, 2_500_000]
    assert getattr(book.of(aws, february), "micro_per_gpu_hour", None) == 4_000_000
    assert book.dates(january - DAY_MS, february + DAY_MS) == [
        january - DAY_MS, january, february, february + DAY_MS
    ]  # fmt: skip


def test_own_prices_replace_the_shipped_ones_of_their_model() -> None:
    book = shipped_prices().with_own(price_book(BOOK))
    own = book.of(H100, 1769904000000)
    assert own is not None
    assert own.source == "contract"
    assert book.of(Offer("B200", "lambda"), 0) is not None


def test_every_shipped_price_has_a_source_and_none_is_for_machines_of_ones_own() -> None:
    for item in shipped_prices().prices:
        assert item.source
        assert item.provider
        assert item.micro_per_gpu_hour > 0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nonsense", "no TOML"),
        ("[[prices]]\n", "tables"),
        ('[[price]]\nmodel = "h100"\nper_gpu_hour = 1\n', "source is missing"),
        ('[[price]]\nmodel = "h1000"\nper_gpu_hour = 1\nsource = "x"\n', "no GPU model"),
        ('[[price]]\nmodel = "h100"\nper_gpu_hour = -1\nsource = "x"\n', "per_gpu_hour"),
        ('[[price]]\nmodel = "h100"\nper_gpu_hour = 1\nsource = "x"\nfrom = "2026"\n', "from is a date"),
        ('[[price]]\nmodel = "h100"\nper_gpu_hour = 1\nsource = "x"\ncapacity = "free"\n', "capacity"),
        ('[[price]]\nmodel = "h100"\nper_gpu_hour = 1\nsource = "x"\ncolour = 1\n', "unknown 'colour'"),
        ('[[price]]\nmodel = "h100"\nper_gpu_hour = 1\nsource = "x"\ncurrency = "usd"\n', "three capitals"),
        ('[[price]]\nmodel = "h100"\nper_gpu_hour = 1\nsource = "x"\n' * 2, "a second one"),
    ],
)
def test_a_book_that_cannot_be_used_is_refused(text: str, message: str) -> None:
    with pytest.raises(PriceError, match=message):
        price_book(text)


NOW_MS = 1770724800000  # 2026-02-10 12:00 UTC


def test_windows_begin_at_midnight_utc() -> None:
    assert window_of(Period.DAY, NOW_MS) == (1770681600000, 1770768000000)
    assert window_of(Period.WEEK, NOW_MS) == (1770595200000, 1771200000000)
    assert window_of(Period.MONTH, NOW_MS) == (1769904000000, 1772323200000)


def _budget(**fields: object) -> Budget:
    defaults: dict[str, object] = {"gpu_hours_milli": 10_000, "namespace": "ml", "action": BudgetAction.HOLD}
    return Budget("team", Period.MONTH, **(defaults | fields))  # type: ignore[arg-type]


@pytest.mark.parametrize(("hours", "state"), [(7, BudgetState.WITHIN), (8, BudgetState.SOFT), (10, BudgetState.SPENT)])
def test_soft_and_hard_limits(hours: int, state: BudgetState) -> None:
    decided = budget_decision(_budget(), invoice([Usage("a", "n", H100, None, hours * GPU_HOUR)]), NOW_MS)
    assert decided.state is state
    assert decided.holds is (state is BudgetState.SPENT)
    assert f"{hours}.0 GPU-hours" in decided.sentence
    assert "2026-03-01 00:00 UTC" in decided.sentence


def test_money_without_a_price_is_not_taken_for_nothing() -> None:
    lines = invoice([Usage("a", "n", H100, None, GPU_HOUR)])
    decided = budget_decision(_budget(gpu_hours_milli=0, micro=10**6, currency="USD"), lines, NOW_MS)
    assert decided.state is BudgetState.UNKNOWN
    assert not decided.holds
    lines += invoice([Usage("a", "n", H100, price(2_000_000), GPU_HOUR)])
    assert budget_decision(_budget(gpu_hours_milli=0, micro=10**6, currency="USD"), lines, NOW_MS).holds, (
        "the rest is enough"
    )


def test_an_exception_ends() -> None:
    spent = invoice([Usage("a", "n", H100, None, 11 * GPU_HOUR)])
    exception = BudgetException(NOW_MS + 1000, "paper", "alice")
    assert budget_decision(_budget(exceptions=(exception,)), spent, NOW_MS).state is BudgetState.EXCEPTED
    assert budget_decision(_budget(exceptions=(exception,)), spent, NOW_MS + 1000).holds


def test_whose_pods_count() -> None:
    pod = Attributes("ml", "p", queue="gpus", labels={"team": "vision"})
    assert applies(_budget(), pod, frozenset())
    assert not applies(_budget(local_queue="other"), pod, frozenset())
    by_queue = _budget(namespace="", cluster_queue="research")
    assert applies(by_queue, pod, frozenset({("ml", "gpus")}))
    assert not applies(by_queue, pod, frozenset({("web", "gpus")}))
    assert not applies(_budget(namespace="", labels={"team": "text"}), pod, frozenset())


def test_a_price_book_is_a_value() -> None:
    assert PriceBook(()).of(H100, 0) is None
