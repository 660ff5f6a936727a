"""Which XIDs are news, by their counts, the last code, and the kernel log's times."""

from collections.abc import Mapping

from kopt.agents.telemetry.recent_xids import RecentXids
from kopt.formats.gpu_metrics.device_reading import DeviceReading

PCI, WINDOW_S = "0000:3b:00.0", 100.0


class Gpu:
    """One GPU, looked at from time to time."""

    def __init__(self) -> None:
        self._recent = RecentXids(WINDOW_S)

    def look(
        self, now_s: float, counts: Mapping[str, float], logged_s: Mapping[str, float] | None = None, last: float = 0.0
    ) -> set[str]:
        device = DeviceReading("0", "GPU-0", pci=PCI, values={"last_xid": last}, labelled={"xid_errors_total": counts})
        return self._codes(device, now_s, logged_s or {})

    def silent(self, now_s: float) -> set[str]:
        return self._codes(DeviceReading("0", "GPU-0", pci=PCI), now_s, {})

    def _codes(self, device: DeviceReading, now_s: float, logged_s: Mapping[str, float]) -> set[str]:
        (read,) = self._recent.added_to([device], now_s, {PCI: logged_s})
        return set(read.labelled.get("recent_xid_errors", {}))


def test_each_code_is_recent_for_the_window_after_it_last_came() -> None:
    gpu = Gpu()
    assert gpu.look(0, {}) == set()
    assert gpu.look(10, {"79": 1}) == {"79"}
    assert gpu.look(60, {"79": 1, "45": 1}, last=45) == {"79", "45"}
    assert gpu.look(110, {"79": 1, "45": 1}, last=45) == {"45"}
    assert gpu.look(120, {"79": 2, "45": 1}, last=79) == {"79", "45"}
    assert gpu.look(219, {"79": 2, "45": 1}, last=79) == {"79"}
    assert gpu.look(220, {"79": 2, "45": 1}, last=79) == set()


def test_a_gpu_that_falls_silent_keeps_its_news_and_tells_nothing_twice() -> None:
    gpu = Gpu()
    assert gpu.look(0, {"79": 1}) == {"79"}
    assert gpu.silent(50) == {"79"}
    assert gpu.silent(100) == set()
    assert gpu.look(110, {"79": 1}) == set()


def test_counts_that_begin_anew_are_counted_anew() -> None:
    gpu = Gpu()
    assert gpu.look(0, {"79": 5}) == {"79"}
    assert gpu.look(150, {}) == set()
    assert gpu.look(160, {"79": 1}) == {"79"}


def test_the_kernel_log_says_how_old_an_xid_is() -> None:
    gpu = Gpu()
    assert gpu.look(1000, {"79": 1, "48": 1}, {"79": 880.0, "48": 950.0}) == {"48"}
    assert gpu.look(1049, {"79": 1, "48": 1}, {"79": 880.0, "48": 950.0}) == {"48"}
    assert gpu.look(1050, {"79": 1, "48": 1}, {"79": 880.0, "48": 950.0}) == set()


def test_of_an_exporter_that_gives_the_last_code_alone_another_code_is_news() -> None:
    gpu = Gpu()
    assert gpu.look(0, {}, last=48) == {"48"}
    assert gpu.look(50, {}, last=79) == {"48", "79"}
    assert gpu.look(120, {}, last=79) == {"79"}
    assert gpu.look(160, {}, last=79) == set()


def test_instances_have_none_and_a_flood_has_an_end() -> None:
    recent = RecentXids(WINDOW_S)
    instance = DeviceReading("0", partition="1", labelled={"xid_errors_total": {"79": 1.0}})
    assert recent.added_to([instance], 0.0, {}) == (instance,)
    flood = [
        DeviceReading(f"{gpu}", labelled={"xid_errors_total": {f"{code}": 1.0 for code in range(99)}})
        for gpu in range(200)
    ]
    read = recent.added_to(flood, 0.0, {})
    counts = [len(each.labelled.get("recent_xid_errors", {})) for each in read]
    assert counts == [64] * 128 + [0] * 72
