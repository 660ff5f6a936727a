"""What a selector says: one service of the autoscaler's own namespace, or a sentence about what to change."""

import pytest

from kopt.controllers.autoscaling.metric_query import LONGEST_LEAD_S, MetricName, SelectorError, read_query

REQUESTS, GPUS = MetricName.REQUESTS_PER_SECOND, MetricName.GPUS_NEEDED


def test_a_service_is_enough() -> None:
    query = read_query(REQUESTS, "ml", "service=chat")
    assert (query.series, query.lead_s, query.quantile, query.capacity_per_gpu) == ("ml/chat", 600, 0.9, None)
    assert dict(query.labels) == {"service": "chat", "lead": "10m", "quantile": "0.9"}


@pytest.mark.parametrize(
    ("lead", "horizons_s"),
    [("1s", [300]), ("5m", [300]), ("6m", [300, 600]), ("15m", [300, 600, 900]), ("1h", list(range(300, 3601, 300)))],
)
def test_every_bucket_up_to_the_lead_time_counts(lead: str, horizons_s: list[int]) -> None:
    assert read_query(REQUESTS, "ml", f"lead={lead},service=chat").horizons_s == horizons_s


def test_gpus_take_the_capacity_of_one() -> None:
    query = read_query(GPUS, "ml", "capacity-per-gpu==900,quantile=0.98,service==chat")
    assert (query.capacity_per_gpu, query.quantile) == (900.0, 0.98)


@pytest.mark.parametrize(
    ("name", "selector", "message"),
    [
        (REQUESTS, "", "names no service"),
        (REQUESTS, "service=", "names no service"),
        (REQUESTS, "service in (chat)", "use matchLabels"),
        (REQUESTS, "service!=chat", "use matchLabels"),
        (REQUESTS, "!service", "use matchLabels"),
        (REQUESTS, "service=chat,model=phi", "'model' is no label"),
        (REQUESTS, "service=chat,capacity-per-gpu=9", "does not take"),
        (GPUS, "service=chat", "needs the label capacity-per-gpu"),
        (GPUS, "service=chat,capacity-per-gpu=0", "capacity-per-gpu='0' is out of range"),
        (REQUESTS, "service=chat,quantile=1", "quantile='1' is out of range"),
        (REQUESTS, "service=chat,quantile=nan", "quantile='nan' is out of range"),
        (REQUESTS, "service=chat,lead=0m", "lead='0m' is no time up to 80m"),
        (REQUESTS, "service=chat,lead=81m", "lead='81m' is no time up to 80m"),
        (REQUESTS, "service=chat,lead=soon", "lead='soon' is no time"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_what_to_change(name: MetricName, selector: str, message: str) -> None:
    with pytest.raises(SelectorError, match=message):
        read_query(name, "ml", selector)


def test_the_longest_lead_is_what_the_endpoint_takes() -> None:
    assert LONGEST_LEAD_S == 4800
    assert len(read_query(REQUESTS, "ml", "service=chat,lead=80m").horizons_s) == 16
