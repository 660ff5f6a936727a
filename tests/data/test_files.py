"""Demand files come back as they were written, and nothing wrong in them passes silently."""

import time
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from example_budget import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from kopt.data.demand.catalogue import CATALOGUE, SeriesInfo, read_catalogue
from kopt.data.demand.files import from_frame, read_demand, write_demand
from kopt.data.demand.table import Array, DemandDataError, DemandSeries

HEADER = "series,t,value\n"
MONDAY = 1_736_121_600
FewFiles = settings(
    max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def _read(folder: Path, text: str | bytes, **options: Any) -> list[DemandSeries]:
    file = folder / "demand.csv"
    file.write_bytes(text.encode() if isinstance(text, str) else text)
    return read_demand(file, **options)


def _assert_same(got: DemandSeries, expected: DemandSeries) -> None:
    for name in ("name", "start_s", "step_s", "unit", "start_known"):
        assert getattr(got, name) == getattr(expected, name), name
    assert list(got.tenants) == list(expected.tenants)
    for label, column in _columns(expected).items():
        np.testing.assert_array_equal(_columns(got)[label], column, err_msg=label)


def _columns(one: DemandSeries) -> dict[str, Array]:
    columns = {"value": one.value, "in_tokens": one.in_tokens, "out_tokens": one.out_tokens, **one.tenants}
    return {label: np.full(len(one), -1.0) if column is None else column for label, column in columns.items()}


def _demand(length: int) -> st.SearchStrategy[Array]:
    amounts = st.one_of(st.floats(0, 1e12), st.just(float("nan")), st.integers(0, 50).map(float))
    return arrays(np.float64, length, elements=amounts)


@st.composite
def _series(draw: st.DrawFn) -> DemandSeries:
    length = draw(st.integers(2, 40))
    value = draw(_demand(length))
    value[draw(st.integers(0, length - 1))] = 1.0
    known = draw(st.booleans())
    start_s = draw(st.integers(10**9, 2 * 10**9) if known else st.integers(0, 10**6))
    tokens = st.none() | _demand(length).filter(lambda column: bool(np.isfinite(column).any()))
    return DemandSeries(
        name=draw(
            st.text(st.characters(categories=("L", "N")), min_size=1, max_size=20).filter(
                lambda name: name not in ("nan", "NaN", "None")
            )
        ),
        start_s=float(start_s),
        step_s=draw(st.sampled_from([1, 60, 300, 600, 3600])),
        value=value,
        unit=draw(st.sampled_from(["requests", "rate", "GPU instances allocated"])),
        start_known=known,
        in_tokens=draw(tokens),
        out_tokens=draw(tokens),
        tenants={f"client{k}": draw(_demand(length)) for k in range(draw(st.integers(0, 3)))},
    )


class TestRoundTrip:
    @settings(FewFiles, max_examples=examples(20))
    @given(st.lists(_series(), min_size=1, max_size=3, unique_by=lambda one: one.name))
    def test_written_series_come_back(self, tmp_path: Path, written: list[DemandSeries]) -> None:
        read = read_demand(write_demand(written, tmp_path))
        assert len(read) == len(written)
        for got, expected in zip(read, written, strict=True):
            _assert_same(got, expected)

    def test_names_twice_are_refused(self, tmp_path: Path) -> None:
        one = DemandSeries("a", 0.0, 300, np.ones(3))
        with pytest.raises(DemandDataError, match="series 'a': two series"):
            write_demand([one, one], tmp_path)
        with pytest.raises(DemandDataError, match="'nan' is not a name"):
            write_demand([replace(one, name="nan")], tmp_path)
        with pytest.raises(DemandDataError, match="no series"):
            write_demand([], tmp_path)


class TestForms:
    """What may be written in a file."""

    @pytest.mark.parametrize(
        ("rows", "start_s", "known"),
        [
            ("a,0,1\na,300,2\na,900,3\n", 0, False),
            ("a,7,1\na,307,2\na,907,3\n", 7, False),
            (f"a,{MONDAY},1\na,{MONDAY + 300},2\na,{MONDAY + 900},3\n", MONDAY, True),
            ("a,2025-01-06T00:00:00Z,1\na,2025-01-06T00:05:00Z,2\na,2025-01-06T00:15:00Z,3\n", MONDAY, True),
            ("a,2025-01-06 00:00:00,1\na,2025-01-06 00:05:00,2\na,2025-01-06 00:15:00,3\n", MONDAY, True),
            ("a,2025-01-06T01:00+01:00,1\na,2025-01-06T01:05+01:00,2\na,2025-01-06T01:15+01:00,3\n", MONDAY, True),
        ],
    )
    def test_times(self, tmp_path: Path, rows: str, start_s: float, known: bool) -> None:
        one = _read(tmp_path, HEADER + rows, step_s=300)[0]
        assert (one.start_s, one.start_known, one.step_s) == (start_s, known, 300)
        np.testing.assert_array_equal(one.value, [1, 2, np.nan, 3])

    def test_series_may_be_mixed_and_other_columns_are_left_alone(self, tmp_path: Path) -> None:
        text = "label,value,series,t,gpu_seconds\nx,1,b,0,0\ny,2,a,0,0\n,3,b,60,0\nz,NaN,a,60,0\nz,,b,120,0\n"
        read = _read(tmp_path, text)
        assert [one.name for one in read] == ["b", "a"]
        np.testing.assert_array_equal(read[0].value, [1, 3, np.nan])
        np.testing.assert_array_equal(read[1].value, [2, np.nan])

    def test_five_thousand_columns(self, tmp_path: Path) -> None:
        names = [f"c{i}" for i in range(5000)]
        text = ",".join(["series", *names, "t", "value"]) + "\n"
        text += "".join(",".join(["a", *["9"] * 5000, str(60 * i), "7"]) + "\n" for i in range(3))
        assert _read(tmp_path, text)[0].value.tolist() == [7, 7, 7]

    def test_line_ends(self, tmp_path: Path) -> None:
        for end in ("\r\n", "\r"):
            assert _read(tmp_path, (HEADER + "a,0,1\na,300,2\n").replace("\n", end))[0].value.tolist() == [1, 2]

    def test_clients_become_tenants_of_their_total(self, tmp_path: Path) -> None:
        rows = [f"m_total,{300 * i},{10 + i}\nm_client7,{300 * i},{i}\n" for i in range(4)]
        late = [f"m_client9,{300 * i},5\n" for i in range(2, 4)]
        other = [f"n_client1,{300 * i},5\n" for i in range(4)]
        read = {one.name: one for one in _read(tmp_path, HEADER + "".join(rows + late + other))}
        assert set(read) == {"m_total", "m_client7", "m_client9", "n_client1"}
        tenants = read["m_total"].tenants
        assert tenants["client7"].tolist() == [0, 1, 2, 3]
        np.testing.assert_array_equal(tenants["client9"], [np.nan, np.nan, 5, 5])
        assert not read["n_client1"].tenants

    def test_a_client_older_than_its_total(self, tmp_path: Path) -> None:
        text = HEADER + _steady(300, 3, 600).replace("a,", "m_total,") + "m_client1,0,7\nm_client1,300,8\n"
        (total, _) = _read(tmp_path, text + "m_client1,600,9\n")
        np.testing.assert_array_equal(total.tenants["client1"], [9, np.nan, np.nan])

    def test_a_client_on_another_grid_is_refused(self, tmp_path: Path) -> None:
        text = HEADER + "m_total,0,1\nm_total,300,1\nm_client1,60,1\nm_client1,360,1\n"
        with pytest.raises(DemandDataError, match="'m_client1': not on the grid of 'm_total'"):
            _read(tmp_path, text)

    def test_catalogue_gives_step_unit_and_start(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        # Times without an offset are UTC wherever the machine stands.
        monkeypatch.setenv("TZ", "Asia/Tokyo")
        time.tzset()
        (tmp_path / CATALOGUE).write_text("name,dt,start,unit\na,60,2025-01-06,tokens\nb,60,anon day0,\n")
        a, b = _read(tmp_path, HEADER + "a,60,1\nb,0,1\n")
        assert (a.start_s, a.start_known, a.step_s, a.unit) == (MONDAY + 60, True, 60, "tokens")
        assert (b.start_s, b.start_known, b.unit) == (0, False, "requests")
        monkeypatch.undo()
        time.tzset()

    def test_parquet_types(self, tmp_path: Path) -> None:
        times = [datetime.fromtimestamp(MONDAY + 300 * i, UTC) for i in range(3)]
        table = pa.table(
            {
                "series": pa.array(["a"] * 3).dictionary_encode(),
                "t": pa.array(times, pa.timestamp("ns", "UTC")),
                "value": pa.array([1, 2, None], pa.int32()),
                "in_tok": pa.array([1.5, None, 3], pa.float32()),
            }
        )
        pq.write_table(table, tmp_path / "demand.parquet")
        one = read_demand(tmp_path)[0]
        assert (one.start_s, one.step_s) == (MONDAY, 300)
        np.testing.assert_array_equal(one.value, [1, 2, np.nan])
        assert one.in_tokens is not None
        np.testing.assert_array_equal(one.in_tokens, [1.5, np.nan, 3])

    def test_frames(self) -> None:
        frame = pd.DataFrame({"t": [0, 300, 600], "value": [1.0, np.nan, 3]}, index=[9, 9, 9])
        one = from_frame(frame)[0]
        assert (one.name, one.step_s) == ("demand", 300)
        with pytest.raises(DemandDataError, match="series 'demand', row 2: value is -3"):
            from_frame(frame.assign(value=[1, 2, -3]))


def _steady(step: int, count: int, start: int = 0) -> str:
    return "".join(f"a,{start + step * i},2\n" for i in range(count))


class TestRefusals:
    """What is wrong is named with its series and row."""

    @pytest.mark.parametrize(
        ("rows", "message"),
        [
            ("a,0,1\na,300,2\na,300,3\n", "series 'a', row 2: .*the same time"),
            ("a,0,1\na,600,2\na,300,3\n", "series 'a', row 2: .*earlier than"),
            ("b,0,1\na,0,1\nb,300,1\na,300,-2\n", "series 'a', row 3: value is -2"),
            ("a,0,1\na,300,inf\n", "series 'a', row 1: value is inf"),
            ("a,0,1\na,300," + "9" * 400 + "\n", "series 'a', row 1: value is inf"),
            ("a,0,1\na,300,2\na,600,1\na,950,2\n", "series 'a', row 3: .*whole number of steps of 300 s"),
            ("a,0,1\na,300,x\n", "row 1: .*'x'"),
            ('a,0,1\na,300,"1,5"\n', "row 1: .*'1,5'"),
            ("a,0,1\na,300\n", "row 1: .*Expected 3 columns"),
            ("a,0,1\na,,2\n", "series 'a', row 1: no time"),
            (",0,1\na,300,2\n", "row 0: '' is not a name"),
            ("a,0,1\nNaN,300,2\n", "row 1: 'NaN' is not a name"),
            ("a\x1b[31m,0,1\na,300,2\n", "row 0: .*not a name"),
            ("a" * 300 + ",0,1\na,300,2\n", "row 0: .*not a name"),
            ("a,2025-01-06T00:00:00,1\na,yesterday,2\n", "row 1: .*ISO"),
            ("a,0,1\n", "series 'a': one row does not tell the step"),
            ("a,0,\na,300,\n", "series 'a': every value is a gap"),
            ("a,0.2,1\na,0.4,1\n", "series 'a': rows are 0.2 s apart"),
            (_steady(300, 20) + _steady(600, 20, 6000), "series 'a', row 20: rows are 600 s apart"),
            (_steady(600, 20) + _steady(300, 20, 12000), "series 'a', row 21: .*whole number of steps of 600 s"),
            (_steady(300, 20, MONDAY) + "a,1736121600000,1\n", "series 'a', row 20: .*milliseconds"),
            ("a,0,1\n" + _steady(300, 20, MONDAY), "series 'a', row 0: .*stray time"),
            (_steady(300, 20) + f"a,{MONDAY},1\n", "series 'a', row 20: .*stray time"),
        ],
    )
    def test_rows(self, tmp_path: Path, rows: str, message: str) -> None:
        with pytest.raises(DemandDataError, match=f"(?s){message}"):
            _read(tmp_path, HEADER + rows)

    def test_a_stray_time_costs_no_memory(self, tmp_path: Path) -> None:
        tracemalloc.start()
        with pytest.raises(DemandDataError, match="stray"):
            _read(tmp_path, HEADER + "a,0,1\na,1,1\na,90000000000,1\n", step_s=1)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 10 << 20

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            (b"", "is empty"),
            (HEADER.encode(), "has no rows"),
            (b"\n\n", "lacks column series, t, value; it has none"),
            (b"a,b\n1,2\n", "lacks column series, t, value; it has a, b"),
            (b"series,t\na,2\n", "lacks column value"),
            (b"series,t,value,value\na,0,1,2\n", "a column twice"),
            (b"x" * (2 << 20), "first line is longer"),
            (HEADER.encode() + b"a,0," + b"1" * (9 << 20), ""),
            (b"PAR1" + b"x" * 100, "Parquet"),
            (b"\xff\xfes\x00e\x00r\x00", "utf-8"),
            (HEADER.encode() + b"a,0,\xff\xff\n", ""),
            (b"\x00" * 1000, ""),
            (b"series" + b"x" * 200_000 + b"\n", "field larger"),
        ],
    )
    def test_files(self, tmp_path: Path, content: bytes, message: str) -> None:
        with pytest.raises(DemandDataError) as caught:
            _read(tmp_path, content)
        assert message in str(caught.value)
        assert len(str(caught.value)) < 1000

    def test_nothing_there(self, tmp_path: Path) -> None:
        with pytest.raises(DemandDataError, match=r"no file .*demand\.parquet or .*demand\.csv"):
            read_demand(tmp_path)
        with pytest.raises(DemandDataError, match="no file"):
            read_demand("/dev/zero")

    @pytest.mark.parametrize(
        ("column", "message"),
        [
            ({"value": ["1", "2"]}, "column value holds string"),
            ({"value": [True, False]}, "column value holds bool"),
            ({"value": [[1], [2]]}, "column value holds list"),
            ({"series": [1, 2]}, "column series holds int64"),
            ({"series": ["a", None]}, "row 1: None is not a name"),
            ({"t": [[1], [2]]}, "column t holds list"),
            ({"t": ["x", "y"]}, "row 0: .*ISO"),
            ({"t": [0, 2**60 + 1]}, "out of|range|seconds"),
            ({"t": ["2025-01-06", None]}, "series 'a', row 1: no time"),
            ({"in_tok": ["x", "y"]}, "column in_tok holds string"),
            ({"in_tok": [1.0, -1.0]}, "series 'a', row 1: in_tok is -1"),
        ],
    )
    def test_parquet_types(self, tmp_path: Path, column: dict[str, list[Any]], message: str) -> None:
        columns: dict[str, list[Any]] = {"series": ["a", "a"], "t": [0, 300], "value": [1.0, 2.0]}
        pq.write_table(pa.table(columns | column), tmp_path / "demand.parquet")
        with pytest.raises(DemandDataError, match=message):
            read_demand(tmp_path)

    def test_text_that_is_none(self, tmp_path: Path) -> None:
        broken = pa.array([b"\xff\xfe", b"a"], pa.binary()).view(pa.string())
        pq.write_table(pa.table({"series": broken, "t": [0, 300], "value": [1.0, 2.0]}), tmp_path / "demand.parquet")
        with pytest.raises(DemandDataError, match="utf-8"):
            read_demand(tmp_path)

    def test_expectations_of_the_caller(self, tmp_path: Path) -> None:
        (tmp_path / CATALOGUE).write_text("name,dt,unit\na,300,rate\n")
        text = HEADER + "a,0,1\na,300,2\n"
        with pytest.raises(DemandDataError, match=r"series 'a': SERIES\.csv says unit 'rate', 'requests' was expected"):
            _read(tmp_path, text, unit="requests")
        with pytest.raises(DemandDataError, match=r"series 'a': SERIES\.csv says steps of 300 s, 60 s were expected"):
            _read(tmp_path, text, step_s=60)
        assert _read(tmp_path, text, unit="rate")[0].unit == "rate"

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("dt\n300\n", "row 0: .*'name'"),
            ("name,dt\na,\n", "series 'a', row 0: .*'dt'"),
            ("name,dt\na,300\na,300\n", "series 'a', row 1: .*twice"),
            ("name,dt\na,fast\n", "series 'a', row 0: .*dt is 'fast'"),
            ("name,dt\na,0.5\n", "series 'a', row 0: dt is '0.5'"),
            ("name,dt\na,-300\n", "series 'a', row 0: .*-300"),
            ("name,dt\na,nan\n", "series 'a', row 0: .*nan"),
            ("name,dt,start\na,300,yesterday\n", "series 'a', row 0: start 'yesterday'"),
            ("name,dt\n" + "a" * 200_000 + ",300\n", "not a readable CSV"),
            ("name,dt,parent\na,300,b\n", "series 'a': its parent 'b'"),
        ],
    )
    def test_catalogues(self, tmp_path: Path, text: str, message: str) -> None:
        (tmp_path / CATALOGUE).write_text(text)
        with pytest.raises(DemandDataError, match=f"(?s){message}"):
            _read(tmp_path, HEADER + "a,0,1\na,300,2\n")


def _only_our_errors(read: Callable[[], object]) -> None:
    try:
        read()
    except DemandDataError as error:
        assert 0 < len(str(error)) < 2000  # noqa: PT017


class TestHostileBytes:
    @FewFiles
    @given(st.binary(max_size=300))
    def test_any_bytes(self, tmp_path: Path, content: bytes) -> None:
        _only_our_errors(lambda: _read(tmp_path, content))
        _only_our_errors(lambda: _read(tmp_path, b"PAR1" + content + b"PAR1"))
        _only_our_errors(lambda: _read(tmp_path, HEADER.encode() + content))

    @FewFiles
    @given(st.lists(st.tuples(*[st.sampled_from(["a", "", "0", "300", "-1", "1e999", "nan", '"', "2025-01-06"])] * 3)))
    def test_any_cells(self, tmp_path: Path, rows: list[tuple[str, ...]]) -> None:
        _only_our_errors(lambda: _read(tmp_path, HEADER + "".join(",".join(row) + "\n" for row in rows)))

    @FewFiles
    @given(st.binary(max_size=200))
    def test_any_catalogue(self, tmp_path: Path, content: bytes) -> None:
        (tmp_path / CATALOGUE).write_bytes(b"name,dt,start\n" + content)
        _only_our_errors(lambda: _read(tmp_path, HEADER + "a,0,1\na,300,2\n"))
        (tmp_path / CATALOGUE).unlink()

    @FewFiles
    @given(st.data())
    def test_torn_and_flipped_parquet(self, tmp_path: Path, data: st.DataObject) -> None:
        write_demand([DemandSeries("a", 0.0, 300, np.arange(50.0))], tmp_path)
        file = tmp_path / "demand.parquet"
        whole = file.read_bytes()
        cut = data.draw(st.integers(0, len(whole) - 1))
        file.write_bytes(whole[:cut])
        with pytest.raises(DemandDataError):
            read_demand(file)
        flipped = bytearray(whole)
        flipped[cut] ^= data.draw(st.integers(1, 255))
        file.write_bytes(flipped)
        _only_our_errors(lambda: read_demand(file))


def _info(name: str, source: str = "alibaba/ServeGen", **more: Any) -> SeriesInfo:
    return replace(SeriesInfo(name, 300, source=source), **more)


class TestGroups:
    def test_servegen_is_split_by_model_with_totals_beside_their_clients(self) -> None:
        names = [
            "servegen_m-large_total",
            "servegen_m-large_client104",
            "servegen_m-mid_total",
            "servegen_mm-image_total",
        ]
        large, client, mid, image = (_info(name).group for name in names)
        assert large == client == "alibaba/ServeGen m-large"
        assert len({large, mid, image}) == 3

    def test_other_sources_are_one_group(self) -> None:
        assert _info("a_total", "numenta/NAB").group == _info("b", "numenta/NAB").group == "numenta/NAB"

    def test_without_a_source_each_service_with_its_tenants_is_one(self) -> None:
        assert _info("chat", "").group == _info("chat/client1", "", parent="chat").group == "chat"


class TestRealSeries:
    """The series that the benchmark scores are read as its own loader reads them."""

    def test_five_minute_sums_equal_the_scorers(self, demand_data_dir: Path) -> None:
        read = {one.name: one for one in read_demand(demand_data_dir)}
        infos = read_catalogue(demand_data_dir)
        frame = pd.read_parquet(demand_data_dir / "demand.parquet")
        assert list(read) == list(dict.fromkeys(frame.series)) == [name for name in read if name in infos]
        scored = 0
        for name, rows in frame.groupby("series"):
            value, step = rows.value.to_numpy(float), infos[str(name)].step_s
            if step < 300:
                blocks = value[: len(value) // (300 // step) * (300 // step)].reshape(-1, 300 // step)
                known = np.isfinite(blocks).sum(1)
                mean = np.where(known > 0, np.nansum(blocks, 1) / np.maximum(known, 1), np.nan)
                value = np.where(known >= max(1, 300 // step - 1), mean * (300 // step), np.nan)
            np.testing.assert_array_equal(read[str(name)].resampled().value, value, err_msg=str(name))
            scored += infos[str(name)].days >= 6.5 and infos[str(name)].kind in ("llm", "web")
        assert scored >= 33

    def test_tenants_groups_and_starts(self, demand_data_dir: Path) -> None:
        read = {one.name: one for one in read_demand(demand_data_dir)}
        infos = read_catalogue(demand_data_dir)
        large = read["servegen_m-large_total"]
        np.testing.assert_array_equal(large.tenants["client142"], read["servegen_m-large_client142"].value)
        known = np.nansum(list(large.tenants.values()), 0)
        assert (known <= large.value * 1.001 + 1).all()
        assert len({info.group for info in infos.values()}) == 11
        assert not large.start_known
        assert read["nasa_http"].start_s == datetime(1995, 7, 1, tzinfo=UTC).timestamp()
        assert read["nasa_http"].start_known
        assert np.isnan(read["nasa_http"].value).sum() == 2689

    def test_written_and_read_again(self, demand_data_dir: Path, tmp_path: Path) -> None:
        series = read_demand(demand_data_dir)
        for got, expected in zip(read_demand(write_demand(series, tmp_path)), series, strict=True):
            _assert_same(got, expected)
