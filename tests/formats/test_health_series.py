"""Evidence from exporters' series: codes, counters that begin anew, windows, masks and AMD's names."""

from hypothesis import given
from hypothesis import strategies as st

from kopt.core.hardware.health import Evidence
from kopt.formats.gpu_metrics.health import read_health

XID, COUNTED = "DCGM_FI_DEV_XID_ERRORS", "DCGM_EXP_XID_ERRORS_COUNT"
Series = tuple[str, dict[str, str], float]


def look(
    *series: Series, before: dict[str, float] | None = None
) -> tuple[list[tuple[str, str, float]], dict[str, float]]:
    readings = read_health(series, {"n1": before or {}}, 100.0, 15.0)
    found = [(item.code, item.gpu, item.amount) for item in readings.evidence.get("n1", [])]
    return found, readings.counters.get("n1", {})


def of(name: str, value: float, gpu: str = "3", **labels: str) -> Series:
    return name, {"Hostname": "n1", "gpu": gpu, **labels}, value


def test_an_xid_is_one_event_until_it_changes() -> None:
    found, counters = look(of(XID, 79.0))
    assert found == [("XID_79", "3", 1.0)]
    assert look(of(XID, 79.0), before=counters)[0] == []
    assert look(of(XID, 43.0), before=counters)[0] == [("XID_43", "3", 1.0)]


def test_where_xids_are_counted_the_last_one_is_not() -> None:
    series = of(XID, 94.0), of(COUNTED, 2.0, xid="94")
    found, counters = look(*series)
    assert found == [("XID_94", "3", 2.0)]
    # What leaves the exporter's window is no event, and what comes again is.
    assert look(of(COUNTED, 1.0, xid="94"), before=counters)[0] == []
    assert look(of(COUNTED, 3.0, xid="94"), before=counters)[0] == [("XID_94", "3", 1.0)]


def test_counters_speak_by_their_growth() -> None:
    name = "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL"
    found, counters = look(of(name, 7.0))
    assert found == []
    assert look(of(name, 9.0), before=counters)[0] == [("ECC_UNCORRECTABLE", "3", 1.0)]
    assert look(of(name, 0.0), before=counters)[0] == []
    assert look(of("DCGM_FI_DEV_PCIE_REPLAY_COUNTER", 5.0), before={"DCGM_FI_DEV_PCIE_REPLAY_COUNTER/3": 0.0})[0] == []


def test_reasons_for_lower_clocks_are_a_mask() -> None:
    name = "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS"
    assert look(of(name, float(0x40 | 0x4)))[0] == [("THERMAL_THROTTLE", "3", 15.0)]
    # A power cap that software set, and an idle GPU.
    assert look(of(name, float(0x4 | 0x1)))[0] == []


def test_states_begin_and_end() -> None:
    assert look(of("DCGM_FI_DEV_ROW_REMAP_FAILURE", 1.0))[0] == [("ROW_REMAP_FAILURE", "3", 1.0)]
    assert look(of("DCGM_FI_DEV_ROW_REMAP_FAILURE", 0.0))[0] == [("ROW_REMAP_FAILURE", "3", 0.0)]
    amd = {"hostname": "n1", "gpu_id": "2"}
    assert look(("amd_gpu_health", amd, 0.0))[0] == [("RAS_UNHEALTHY", "2", 1.0)]
    assert look(("gpu_health", amd, 1.0))[0] == [("RAS_UNHEALTHY", "2", 0.0)]


@given(
    st.lists(
        st.tuples(
            st.sampled_from([XID, COUNTED, "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS", "gpu_health", "up", ""]),
            st.dictionaries(st.sampled_from(["Hostname", "gpu", "gpu_id", "xid", "node"]), st.text(max_size=8)),
            st.floats(),
        )
    )
)
def test_no_series_breaks_it(series: list[Series]) -> None:
    readings = read_health(series, {}, 1.0, 15.0)
    assert all(isinstance(item, Evidence) and item.amount >= 0 for each in readings.evidence.values() for item in each)
