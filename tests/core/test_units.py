"""Quantities are exact integers, and what cannot be read is refused with words."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kopt.core.units import UnitError, format_bytes, format_gpus, parse_bytes, parse_milli_gpu


@pytest.mark.parametrize(
    ("text", "amount"),
    [
        ("0", 0),
        ("1024", 1024),
        ("512Mi", 512 << 20),
        ("1GiB", 1 << 30),
        ("80GB", 80 * 10**9),
        ("80G", 80 * 10**9),
        (" 1.5 Gi ", 3 << 29),
        ("0.1Ki", 103),
        ("1k", 1000),
        ("2TiB", 2 << 40),
        ("1Pi", 1 << 50),
        ("7B", 7),
    ],
)
def test_bytes(text: str, amount: int) -> None:
    assert parse_bytes(text) == amount


@pytest.mark.parametrize(
    "text", ["", "-1Gi", "1 gb", "1Gb", "GiB", "1e3", "0x10", "1,5Gi", "1..5Gi", "NaN", "inf", "1Gi1"]
)
def test_what_is_no_amount_of_memory(text: str) -> None:
    with pytest.raises(UnitError, match="512Mi"):
        parse_bytes(text)


@pytest.mark.parametrize(("text", "milli"), [("2", 2000), ("0.25", 250), ("250m", 250), ("0.1", 100), ("0", 0)])
def test_gpus(text: str, milli: int) -> None:
    assert parse_milli_gpu(text) == milli


@pytest.mark.parametrize(
    ("text", "message"), [("0.0005", "finer"), ("0.5m", "finer"), ("-1", "2, 0.5"), ("all", "2, 0.5")]
)
def test_what_is_no_number_of_gpus(text: str, message: str) -> None:
    with pytest.raises(UnitError, match=message):
        parse_milli_gpu(text)


@given(st.integers(0, 10**9))
def test_gpus_read_back_as_written(milli: int) -> None:
    assert parse_milli_gpu(format_gpus(milli)) == milli


@given(st.lists(st.integers(0, 1000), max_size=50))
def test_shares_add_up_exactly(shares: list[int]) -> None:
    assert sum(parse_milli_gpu(f"{share / 1000:.3f}") for share in shares) == sum(shares)


@given(st.text(max_size=30))
def test_any_text_is_read_or_refused(text: str) -> None:
    for parse in (parse_bytes, parse_milli_gpu):
        with contextlib.suppress(UnitError):
            assert parse(text) >= 0


@pytest.mark.parametrize(
    ("amount", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (80 << 30, "80.0 GiB"), (1 << 60, "1048576.0 TiB")],
)
def test_bytes_for_people(amount: int, text: str) -> None:
    assert format_bytes(amount) == text
