"""Public traces in their own formats become demand per bucket; the samples here are made up."""

import gzip
import json
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from example_budget import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kopt.data.demand.load import load
from kopt.data.demand.table import DemandDataError, DemandSeries
from kopt.data.demand.traces import is_trace, read_trace

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
BURST = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
NOV_16_1815 = 1_700_158_500


def _write(folder: Path, text: str | bytes, name: str = "trace.csv") -> Path:
    (folder / name).write_bytes(text.encode() if isinstance(text, str) else text)
    return folder / name


def _azure_rows(*requests: tuple[str, int, int]) -> str:
    return AZURE + "".join(f"{time},{given},{made}\n" for time, given, made in requests)


AZURE_SAMPLE = _azure_rows(
    ("2023-11-16 18:17:03.9799600", 4808, 10),  # the first bucket is cut by the start of the log
    ("2023-11-16 18:20:04.0319600", 100, 8),
    ("2023-11-16 18:24:59.9999999", 50, 2),
    ("2023-11-16 18:31:00.0000000", 7, 1),  # nothing from 18:25 to 18:30
    ("2023-11-16 18:30:00.0000000", 1, 1),  # late, out of order
    ("2023-11-16 18:39:00.0000000", 9, 9),
    ("2023-11-16 18:41:00.0000000", 9, 9),  # the last bucket is cut by the end of the log
)


class TestAzure:
    def test_requests_and_tokens_per_bucket(self, tmp_path: Path) -> None:
        (one,) = load(_write(tmp_path, AZURE_SAMPLE, "AzureLLMInferenceTrace_code.csv"))
        assert (one.name, one.unit, one.step_s) == ("AzureLLMInferenceTrace_code", "requests", 300)
        assert (one.start_s, one.start_known) == (NOV_16_1815 + 300, True)
        assert one.value.tolist() == [2, 0, 2, 1]
        assert one.in_tokens is not None
        assert one.in_tokens.tolist() == [150, 0, 8, 9]
        assert one.out_tokens is not None
        assert one.out_tokens.tolist() == [10, 0, 2, 9]

    def test_other_steps_offsets_columns_and_compression(self, tmp_path: Path) -> None:
        text = "TIMESTAMP,NumImages,ContextTokens,GeneratedTokens\n"
        text += "".join(f"2024-05-10 00:{i:02d}:00.009930+00:00,0,{i},1\n" for i in range(30))
        (one,) = load(_write(tmp_path, gzip.compress(text.encode()), "week.csv.gz"), step_s=60)
        assert (one.name, one.step_s, len(one)) == ("week", 60, 28)
        assert one.value.tolist() == [1] * 28

    def test_a_long_log_needs_the_memory_of_a_block(self, tmp_path: Path) -> None:
        lines = [
            f"2024-05-{1 + i // 20_000:02d} {i // 900 % 24:02d}:{i // 15 % 60:02d}:00.1,{i},1" for i in range(400_000)
        ]
        path = _write(tmp_path, AZURE + "\n".join(lines))
        assert path.stat().st_size > 10 << 20
        seen: list[int] = []
        tracemalloc.start()
        (one,) = read_trace(path, progress=seen.append)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert len(seen) > 2
        assert seen[-1] == 400_000
        assert peak < 120 << 20
        assert 390_000 < one.value.sum() <= 400_000

    def test_a_row_of_a_later_block_is_named(self, tmp_path: Path) -> None:
        row = "2024-05-10 00:00:00.1,1,1\n"
        path = _write(tmp_path, AZURE + row * 300_000 + "2024-05-10 00:00:00.1,1,-5\n")
        with pytest.raises(DemandDataError, match="row 300000: GeneratedTokens is -5"):
            read_trace(path)
        path = _write(tmp_path, AZURE + row * 300_000 + "2024-05-10 00:00:00.1,1,x\n")
        with pytest.raises(DemandDataError, match=r"row 300000: .*'x'"):
            read_trace(path)


class TestBurstGpt:
    def test_one_series_per_model_with_kinds_of_use_as_tenants(self, tmp_path: Path) -> None:
        rows = [
            "5,ChatGPT,472,18,490,Conversation log",
            "45,ChatGPT,1087,0,1087,API log",  # a failed request is demand too
            "310.5,GPT-4,417,505,922,API log",
            "299.9,ChatGPT,1,1,2,API log",
            "910.5,GPT-4,417,505,922,API log",
        ]
        chat, gpt4 = load(_write(tmp_path, BURST + "\n".join(rows) + "\n"))
        assert (chat.name, gpt4.name) == ("burstgpt_ChatGPT", "burstgpt_GPT-4")
        assert (chat.start_s, chat.start_known) == (0, False)
        assert chat.value.tolist() == [3, 0, 0]
        assert gpt4.value.tolist() == [0, 1, 0]
        assert {name: column.tolist() for name, column in chat.tenants.items()} == {
            "Conversation log": [1, 0, 0],
            "API log": [2, 0, 0],
        }
        assert chat.in_tokens is not None
        assert chat.in_tokens.tolist() == [1560, 0, 0]

    def test_thousands_of_models_are_refused(self, tmp_path: Path) -> None:
        rows = "".join(f"{i},model{i},1,1,2,API log\n" for i in range(1200))
        with pytest.raises(DemandDataError, match="more than 1000 models"):
            read_trace(_write(tmp_path, BURST + rows))


def _chunk(folder: Path, client: int, rates: list[float | str], dataset: object = None) -> None:
    rows = [f"{600 * i},{rate},1.2,{'Gamma' if rate else ''},0.5,2.0\n" for i, rate in enumerate(rates)]
    (folder / f"chunk-{client}-trace.csv").write_text("".join(rows))
    if dataset is not None:
        (folder / f"chunk-{client}-dataset.json").write_text(json.dumps(dataset))


class TestServeGen:
    @pytest.fixture
    def model(self, tmp_path: Path) -> Path:
        folder = tmp_path / "m-large"
        folder.mkdir()
        tokens = {
            "0": {"input_tokens": "{10: 0.5, 20: 0.5}", "output_tokens": "{5: 1.0}"},
            "1200": {"input_tokens": "{100: 0.25, 200: 0.75}", "output_tokens": "{}"},
        }
        _chunk(folder, 12, [0.5, 0, 0.5, ""], tokens)
        _chunk(folder, 3, [1, 0, 0, 2])
        return folder

    def test_clients_total_and_tenants(self, model: Path) -> None:
        series = {one.name: one for one in load(model)}
        assert list(series) == ["m-large_total", "m-large_client3", "m-large_client12"]
        total = series["m-large_total"]
        assert (total.step_s, total.start_known) == (600, False)
        # The second window has no request of any client: a gap. In the fourth one client has no rate.
        np.testing.assert_array_equal(total.value, [900, np.nan, 300, 1200])
        np.testing.assert_array_equal(total.tenants["client12"], [300, np.nan, 300, np.nan])
        np.testing.assert_array_equal(total.tenants["client3"], [600, np.nan, 0, 1200])

    def test_tokens_from_the_newest_distribution_scaled_to_all_requests(self, model: Path) -> None:
        total, _, client = load(model)
        assert client.in_tokens is not None
        np.testing.assert_allclose(client.in_tokens, [300 * 15, np.nan, 300 * 175, np.nan])
        assert client.out_tokens is not None
        np.testing.assert_allclose(client.out_tokens, [1500, np.nan, np.nan, np.nan])
        assert total.in_tokens is not None
        np.testing.assert_allclose(total.in_tokens, [900 * 15, np.nan, 300 * 175, np.nan])

    def test_one_chunk_is_one_client(self, model: Path) -> None:
        (one,) = load(model / "chunk-3-trace.csv")
        assert one.name == "m-large_client3"
        assert one.value.tolist() == [600, 0, 0, 1200]

    @pytest.mark.parametrize(
        ("trace", "dataset", "message"),
        [
            ("0,1\n600,x\n", None, "series 'm-large_client5', row 1: rate is 'x'"),
            ("0,1\n600\n", None, "series 'm-large_client5', row 1: .*expected start"),
            ("0,1\n600,-1\n1200,1\n", None, "series 'm-large_client5', row 1: rate is -1"),
            ("0,1\n600,1\n600,1\n", None, "series 'm-large_client5', row 2: .*the same time"),
            ("0,1\n600,1\n", None, "'m-large_client5': its windows are not those of m-large_client3"),
            ("0,1\n600,1\n", "{", "'m-large_client5': .*not ServeGen's JSON"),
            ("0,1\n600,1\n", "[]", "'m-large_client5': .*not ServeGen's JSON"),
            ("0,1\n600,1\n", "[" * 100_000, "'m-large_client5': .*not ServeGen's JSON"),
            ("0,1\n600,1\n", '{"0": {"input_tokens": "__import__(\\"os\\")"}}', "'m-large_client5': tokens are not"),
            ("0,1\n600,1\n", '{"0": {"input_tokens": [1]}}', "'m-large_client5': tokens are not"),
        ],
    )
    def test_refusals(self, model: Path, trace: str, dataset: str | None, message: str) -> None:
        (model / "chunk-5-trace.csv").write_text(trace)
        if dataset is not None:
            (model / "chunk-5-dataset.json").write_text(dataset)
        with pytest.raises(DemandDataError, match=message):
            load(model)


class TestRefusals:
    @pytest.mark.parametrize(
        ("text", "message"),
        [
            (AZURE, "has no requests"),
            (_azure_rows(("foo", 1, 1)), "row 0: .*ISO"),
            (AZURE + "2023-11-16 18:17:03,1\n", "row 0: .*Expected 3 columns"),
            (AZURE + "2023-11-16 18:17:03,1,\n", "row 0: GeneratedTokens is nan"),
            (AZURE_SAMPLE + "1970-01-01 18:17:03,1,1\n", "row 7: .*stray"),
            (AZURE_SAMPLE + "2199-01-01 18:17:03,1,1\n", "row 7: .*stray"),
            (AZURE_SAMPLE + "1903-01-01 18:17:03,1,1\n", "row 7: TIMESTAMP is not a time"),
            (BURST + "x,ChatGPT,1,1,2,API log\n", "row 0: .*'x'"),
            (BURST + "-5,ChatGPT,1,1,2,API log\n", "row 0: Timestamp is not a time"),
            (BURST + "1736121600000,ChatGPT,1,1,2,API log\n", "row 0: Timestamp is not a time in seconds"),
            (BURST + "5,ChatGPT,1,1,2,API log\n5,,1,1,2,API log\n", "row 1: Model is not"),
            (BURST + "5,ChatGPT,1,1,2,API log\n5,ChatGPT,-1,1,2,API log\n", "row 1: Request tokens is -1"),
        ],
    )
    def test_rows(self, tmp_path: Path, text: str, message: str) -> None:
        with pytest.raises(DemandDataError, match=message):
            read_trace(_write(tmp_path, text))

    def test_unknown_formats(self, tmp_path: Path) -> None:
        for path in (_write(tmp_path, "a,b\n1,2\n"), tmp_path, tmp_path / "none"):
            assert not is_trace(path)
            with pytest.raises(DemandDataError, match=r"no known trace.*ServeGen"):
                read_trace(path)

    @settings(max_examples=examples(80), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(st.binary(max_size=200), st.sampled_from([b"", AZURE.encode(), BURST.encode(), b"\x1f\x8b"]))
    def test_any_bytes(self, tmp_path: Path, content: bytes, head: bytes) -> None:
        path = _write(tmp_path, head + content)
        try:
            read = load(path)
        except DemandDataError as error:
            assert 0 < len(str(error)) < 2000  # noqa: PT017
        else:
            assert all(isinstance(one, DemandSeries) for one in read)


def test_a_folder_of_demand_is_no_trace(tmp_path: Path) -> None:
    _write(tmp_path, "series,t,value\na,0,1\na,300,2\n", "demand.csv")
    assert load(tmp_path, unit="requests")[0].value.tolist() == [1, 2]
