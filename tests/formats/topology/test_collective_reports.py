"""nccl-tests as JSON reports, and logs of older versions that leave a column blank."""

import json
from typing import Any

import pytest
import topology_outputs as rendered

from kopt.core.hardware.collectives import CollectiveLog
from kopt.formats.topology import FormatError, parse


def _log(text: str) -> CollectiveLog:
    found = parse(text)
    assert isinstance(found, CollectiveLog)
    return found


def _report(**changes: Any) -> str:
    document: dict[str, Any] = json.loads(rendered.nccl_tests_json()) | changes
    return json.dumps({key: value for key, value in document.items() if value is not None})


def test_a_report_is_what_the_log_of_the_run_is() -> None:
    run = _log(rendered.nccl_tests_json(2, 4)).runs[0]
    log = _log(rendered.nccl_tests(8)).runs[0]
    assert run.collective == log.collective == "all_reduce"
    assert [(row.bytes, row.in_place) for row in run.rows] == [(row.bytes, row.in_place) for row in log.rows]
    assert [row.latency_us for row in run.rows] == pytest.approx([row.latency_us for row in log.rows], rel=1e-3)
    assert run.average_busbw_gigabytes_per_s == pytest.approx(log.average_busbw_gigabytes_per_s, rel=1e-3)


def test_gpus_that_a_process_drives_beside_its_first_are_ranks_too() -> None:
    run = _log(rendered.nccl_tests_json(2, 4)).runs[0]
    assert [(rank.rank, rank.host, rank.gpu) for rank in run.ranks] == [
        (4 * node + gpu, f"node-{node}", gpu) for node in range(2) for gpu in range(4)
    ]
    assert len(_log(rendered.nccl_tests_json(4, 1)).runs[0].ranks) == 4


def test_messages_around_a_report_are_not_part_of_it() -> None:
    assert _log(f"# Writing JSON output to out.json\n{rendered.nccl_tests_json()}\n").runs[0].hosts == 2


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"average_bus_bandwidth": None}, "did not end"),
        ({"results": []}, "did not end"),
        ({"results": json.loads(rendered.nccl_tests_json())["results"][::2]}, "a row is missing"),
        ({"devices": json.loads(rendered.nccl_tests_json())["devices"][:1]}, "not those of 4 ranks"),
        ({"config": {}}, "not as the tool writes it"),
        ({"average_bus_bandwidth": {"bandwidth": 1.0}}, "a row is missing"),
    ],
)
def test_a_report_that_is_cut_or_contradicts_itself_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(FormatError, match=message):
        parse(_report(**changes))


def test_times_of_the_processor_are_no_bandwidth() -> None:
    with pytest.raises(FormatError, match="times of the processor"):
        parse(rendered.nccl_tests_json().replace('"time"', '"cpu_time"'))


def test_older_versions_leave_the_reduction_blank() -> None:
    text = rendered.nccl_tests(8, "all_gather").replace("   redop    root  ", "   redop  ").replace("      -1 ", " ")
    assert _log(text).runs[0].rows[0].reduction == "sum"
    assert _log(text.replace("     sum ", "         ")).runs[0].rows[0].reduction == ""
    row = next(line for line in text.splitlines() if "float" in line)
    with pytest.raises(FormatError, match="figures under"):
        parse(text.replace(row, row.rsplit(maxsplit=2)[0]))


def test_an_average_may_name_its_unit() -> None:
    text = rendered.nccl_tests()
    average = next(line for line in text.splitlines() if "Avg bus" in line)
    assert _log(text.replace(average, f"{average}GB/s")) == _log(text)
