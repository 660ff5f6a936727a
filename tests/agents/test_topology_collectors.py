"""What the topology agent asks on a node: tools that hang, fail, print without end, or are not there."""

import asyncio
import json
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import node_outputs as outputs
import pytest
from controlplane.processes import wait_for

from kopt.agents.topology import nvml
from kopt.agents.topology.commands import Limits, Tool
from kopt.agents.topology.facts import details_of
from kopt.agents.topology.readings import CollectorError, CollectorProblem, Reading
from kopt.agents.topology.scanning import Scanner, ScanResult
from kopt.agents.topology.sources import NAMES, Sources
from kopt.agents.topology.sysfs import NoPartError, read_part
from kopt.agents.topology.versions import version_warnings
from kopt.core.hardware.node_topology import LinkType, NodeTopology

MakeTool = Callable[[str, str], Path]


@pytest.fixture
def bin_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MakeTool:
    """``bin_folder(name, script)``: a tool on a PATH that has no other tools of GPUs."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")

    def make(name: str, script: str) -> Path:
        path = folder / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        return path

    return make


def trouble_of(tool: Tool) -> tuple[CollectorProblem, str]:
    with pytest.raises(CollectorError) as caught:
        asyncio.run(tool.collect())
    return caught.value.problem, str(caught.value)


def test_a_tool_runs_without_a_shell_in_a_plain_locale(bin_folder: MakeTool) -> None:
    bin_folder("nvidia-smi", 'printf "%s|" "$LC_ALL" "$@"')
    text = asyncio.run(Tool("x", ("nvidia-smi", "topo", "-m; $(echo evil)"), Limits()).collect())
    assert text == "C|topo|-m; $(echo evil)|"


def test_a_tool_that_hangs_is_ended_with_all_that_it_started(bin_folder: MakeTool, tmp_path: Path) -> None:
    started = tmp_path / "child"
    bin_folder("nvidia-smi", f"sleep 1000 & echo $! > {started}; echo 'half a table'; wait")
    problem, message = trouble_of(Tool("x", ("nvidia-smi",), Limits(time_s=0.5)))
    assert (problem, message) == (CollectorProblem.TIMEOUT, "no answer within 0.5 s")
    wait_for(lambda: not is_alive(int(started.read_text())), what="its child is gone")


def test_a_child_that_keeps_the_output_open_is_ended_too(bin_folder: MakeTool, tmp_path: Path) -> None:
    started = tmp_path / "child"
    bin_folder("nvidia-smi", f"echo table; sleep 1000 & echo $! > {started}")
    assert trouble_of(Tool("x", ("nvidia-smi",), Limits(time_s=0.5)))[0] is CollectorProblem.TIMEOUT
    wait_for(lambda: not is_alive(int(started.read_text())), what="its child is gone")


def test_as_the_first_process_of_a_container_it_leaves_no_zombies(bin_folder: MakeTool, tmp_path: Path) -> None:
    bin_folder("nvidia-smi", "sleep 1000 & sleep 1000")
    program = """if True:
        import asyncio, ctypes, pathlib
        from kopt.agents.topology.commands import Limits, Tool
        from kopt.agents.topology.readings import CollectorError
        ctypes.CDLL(None).prctl(36, 1)  # orphans become this process's children, as those of process 1 do
        try:
            asyncio.run(Tool("x", ("nvidia-smi",), Limits(time_s=0.5)).collect())
        except CollectorError as error:
            print(error.problem, list(pathlib.Path("/proc/self/task").glob("*/children"))[0].read_text().split())
    """
    done = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["timeout", "[]"]


def test_output_without_end_is_cut_off_where_it_gets_too_long(bin_folder: MakeTool) -> None:
    # A hundred megabytes, and as much on standard error.
    bin_folder("nvidia-smi", "head -c 104857600 /dev/zero >&2; head -c 104857600 /dev/zero")
    problem, message = trouble_of(Tool("x", ("nvidia-smi",), Limits(time_s=60, text_bytes=1 << 20)))
    assert (problem, message) == (CollectorProblem.TOO_LARGE, "prints more than 1024 KiB")


@pytest.mark.parametrize(
    ("script", "problem", "words"),
    [
        ("echo 'driver is broken' >&2; exit 9", CollectorProblem.FAILED, "ended with 9: driver is broken"),
        ("echo 'No devices were found'; exit 6", CollectorProblem.FAILED, "ended with 6: No devices were found"),
        ("kill -SEGV $$", CollectorProblem.FAILED, "ended with -11"),
        ("exit 0", CollectorProblem.ABSENT, "prints nothing"),
        ("exit 3", CollectorProblem.ABSENT, "ended with 3"),
    ],
)
def test_a_tool_that_fails_says_why(bin_folder: MakeTool, script: str, problem: CollectorProblem, words: str) -> None:
    bin_folder("nvidia-smi", script)
    assert trouble_of(Tool("x", ("nvidia-smi",), Limits(), absent=(3,))) == (problem, words)


def test_a_tool_that_is_not_there_or_cannot_be_started(bin_folder: MakeTool) -> None:
    assert trouble_of(Tool("x", ("amd-smi",), Limits()))[0] is CollectorProblem.ABSENT
    bin_folder("nvidia-smi", "").write_bytes(b"\x7fELF, but nothing more")
    assert trouble_of(Tool("x", ("nvidia-smi",), Limits()))[0] is CollectorProblem.FAILED


def test_a_tool_that_does_not_end_is_not_started_again(bin_folder: MakeTool, tmp_path: Path) -> None:
    count = tmp_path / "count"
    bin_folder("nvidia-smi", f"echo x >> {count}; sleep 1000")
    tool = Tool("x", ("nvidia-smi",), Limits(time_s=0.2))

    class Unkillable(SimpleNamespace):
        returncode = None

    tool._stuck = Unkillable()  # type: ignore[assignment]
    assert trouble_of(tool)[0] is CollectorProblem.STUCK
    assert not count.exists()
    tool._stuck.returncode = -9  # type: ignore[union-attr, misc]
    assert trouble_of(tool)[0] is CollectorProblem.TIMEOUT


def test_one_that_hangs_and_one_that_prints_rubbish_stop_no_other(bin_folder: MakeTool, tmp_path: Path) -> None:
    folder = outputs.cube_mesh(tmp_path / "recorded")
    bin_folder(
        "nvidia-smi",
        f"""case "$*" in
      "topo -m") cat {folder}/nvidia-smi-topo.txt;;
      "topo -p2p r") sleep 1000;;
      "nvlink -s") head -c 4000 /dev/urandom;;
      "-L") cat {folder}/nvidia-smi-list.txt;;
      "-q") echo "NVIDIA-SMI has failed"; exit 9;;
      *) exit 1;;
    esac""",
    )
    (tmp_path / "root").mkdir()
    found = scan(Sources(root=tmp_path / "root", limits=Limits(time_s=3)))
    troubles = {one.name: one.problem for one in found.readings if one.problem is not CollectorProblem.ABSENT}
    assert troubles["nvidia-smi-topo"] is troubles["nvidia-smi-list"] is None
    assert (troubles["nvidia-smi-p2p"], troubles["nvidia-smi-nvlink"]) == (
        CollectorProblem.TIMEOUT,
        CollectorProblem.UNREADABLE,
    )
    assert troubles["nvidia-smi-q"] is CollectorProblem.FAILED
    assert found.topology is not None
    assert (len(found.topology.gpus), len(found.topology.links)) == (8, 28)


def test_a_node_without_any_tool_has_no_topology(bin_folder: MakeTool, tmp_path: Path) -> None:
    found = scan(Sources(root=tmp_path))
    assert found.topology is None
    assert {one.problem for one in found.readings} == {CollectorProblem.ABSENT}


def test_what_fails_for_a_while_is_stood_in_for_by_what_it_said(tmp_path: Path) -> None:
    clock = [0.0]
    folder = outputs.cube_mesh(tmp_path / "recorded")
    scanner = Scanner(Sources(replay=folder).collectors(), keep_s=900, clock=lambda: clock[0])
    whole = asyncio.run(scanner.scan()).topology
    (folder / "nvidia-smi-topo.txt").write_text("GPU0\tGPU1\nGPU0\t X ")
    clock[0] = 600
    found = asyncio.run(scanner.scan())
    assert found.topology == whole
    assert found.stale == {"nvidia-smi-topo"}
    clock[0] = 1000
    found = asyncio.run(scanner.scan())
    assert found.topology is not None
    assert not found.topology.links
    assert not found.stale


def test_sources_that_contradict_each_other_are_told_and_the_first_is_kept(tmp_path: Path) -> None:
    folder = outputs.cube_mesh(tmp_path / "recorded", kfd=outputs.kfd(4))
    (folder / "nvidia-smi-list.txt").write_text(outputs.smi_list(8).replace(outputs.uuid(3), outputs.uuid(99)))
    found = scan(Sources(replay=folder))
    assert found.topology is not None
    assert len(found.topology.links) == 28
    assert [one for one in found.warnings if one.startswith("kfd was left out") and "not the same machine" in one]
    assert [one for one in found.warnings if outputs.uuid(99) in one]


def test_a_slow_collector_is_not_waited_for_where_there_is_a_limit(bin_folder: MakeTool, tmp_path: Path) -> None:
    bin_folder("nvidia-smi", "sleep 1000")
    bin_folder("ibdev2netdev", "echo 'mlx5_0 port 1 ==> eth0 (Up)'")
    plant(tmp_path / "sys/class/infiniband", {"mlx5_0/board_id": "MT_0"})
    scanner = Scanner(Sources(root=tmp_path, only=["nvidia-smi-topo", "ibdev2netdev"]).collectors())
    found = asyncio.run(scanner.scan(1.0))
    assert {one.name: one.problem for one in found.readings} == {
        "nvidia-smi-topo": CollectorProblem.TIMEOUT,
        "ibdev2netdev": None,
    }


def test_recorded_outputs_are_found_by_name_once(tmp_path: Path) -> None:
    folder = outputs.record(tmp_path, nvidia_smi_list=outputs.smi_list(2))
    (folder / "nvidia-smi-list.log").write_text("another")
    (folder / "nvidia-smi-q.txt").write_text("x" * (3 << 20))
    troubles = {one.name: one for one in scan(Sources(replay=folder)).readings}
    assert "which of them?" in troubles["nvidia-smi-list"].message
    assert troubles["nvidia-smi-q"].problem is CollectorProblem.TOO_LARGE
    assert troubles["kfd"].problem is CollectorProblem.ABSENT
    assert set(troubles) == set(NAMES)


def test_a_collector_that_is_not_known_is_refused() -> None:
    with pytest.raises(ValueError, match="no collector is named nvidia"):
        Sources(only=["nvidia"]).collectors()


def test_sys_is_read_below_a_root_and_merged_with_what_tools_say(tmp_path: Path) -> None:
    cards = {"mlx5_0": 0, "mlx5_1": 4}
    plant(tmp_path / "sys/class/kfd/kfd/topology", json.loads(outputs.kfd(4)))
    plant(tmp_path / "sys/module", {"amdgpu/version": "6.12.12\n"})
    with pytest.raises(NoPartError):
        read_part("infiniband", tmp_path)
    devices = tmp_path / "sys/devices/pci0000:60/0000:60:01.1"
    for name, address in (("mlx5_0", "0000:63:01.0"), ("mlx5_1", "0000:65:01.0")):
        plant(
            devices / address, {"class": "0x020700\n", "vendor": "0x15b3\n", "device": "0x1021\n", "numa_node": "0\n"}
        )
        link(tmp_path / "sys/bus/pci/devices" / address, devices / address)
        ports = json.loads(outputs.infiniband({name: cards[name]}))
        plant(tmp_path / "sys/class/infiniband", {path: text for path, text in ports.items() if "/ports/" in path})
        link(tmp_path / "sys/class/infiniband" / name / "device", devices / address)
    plant(
        devices / "0000:63:00.0",
        {"class": "0x038000\n", "vendor": "0x1002\n", "device": "0x740c\n", "numa_node": "0\n"},
    )
    link(tmp_path / "sys/bus/pci/devices/0000:63:00.0", devices / "0000:63:00.0")
    only = ["kfd", "infiniband", "pci", "driver-versions"]
    found = scan(Sources(root=tmp_path, only=only))
    assert {one.problem for one in found.readings} == {None}
    assert found.topology is not None
    assert {nic.name: nic.pci for nic in found.topology.nics} == {"mlx5_0": "0000:63:01.0", "mlx5_1": "0000:65:01.0"}
    assert {(one.gpu, one.nic, one.type) for one in found.topology.nic_affinity} == {
        (0, "mlx5_0", LinkType.PIX),
        (0, "mlx5_1", LinkType.PIX),
    }
    assert found.details.versions == {"amdgpu": "6.12.12"}


def test_versions_that_are_not_known_are_warned_of() -> None:
    assert list(version_warnings({"nvidia": "580.65.06", "rocm": "6.3.0", "amdgpu": "6.12.12"})) == []
    (new,) = version_warnings({"nvidia": "700.1"})
    assert "nvidia 700.1 is not among the known versions (450 to 610)" in new
    (old,) = version_warnings({"rocm": "4.5.2"})
    assert "5.0 to 7.2" in old


def test_a_multi_node_domain_is_told_where_every_gpu_is_in_it() -> None:
    cluster = "3f2b8a60-1111-4222-8333-444455556666"

    def domain(text: str) -> str:
        return details_of([Reading("nvidia-smi-q", text)]).domain

    assert domain(outputs.query(4, cluster=cluster, clique=7)) == f"{cluster}.7"
    assert domain(outputs.query(4, cluster="00000000-0000-0000-0000-000000000000")) == ""
    other = outputs.query(1, cluster=cluster, clique=7) + outputs.query(1, cluster=cluster, clique=8)
    assert domain(other) == ""


class FakeNvml:
    """Four GPUs: 0 and 1 share two NVLinks, 2 and 3 hang on switches by three, the rest goes through PCIe."""

    class NVMLError(Exception):
        pass

    NVML_NVLINK_MAX_LINKS, NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON = 6, 1
    links: dict[int, list[Any]] = {0: [1, 1], 1: [0, 0], 2: ["switch"] * 3, 3: ["switch"] * 3}  # noqa: RUF012

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)

    def nvmlDeviceGetCount(self) -> int:
        return 4

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetName(self, handle: int) -> bytes:
        return b"NVIDIA H100"

    def nvmlDeviceGetUUID(self, handle: int) -> str:
        return outputs.uuid(handle)

    def nvmlDeviceGetPciInfo(self, handle: int) -> Any:
        return SimpleNamespace(busId=f"0000{outputs.pci(handle).upper()}".encode())

    def nvmlSystemGetDriverVersion(self) -> str:
        return "580.65.06"

    def nvmlDeviceGetNvLinkState(self, handle: int, number: int) -> int:
        if number >= len(self.links[handle]):
            raise self.NVMLError("not supported")
        return 1

    def nvmlDeviceGetNvLinkRemoteDeviceType(self, handle: int, number: int) -> int:
        return 2 if self.links[handle][number] == "switch" else 0

    def nvmlDeviceGetNvLinkRemotePciInfo(self, handle: int, number: int) -> Any:
        return self.nvmlDeviceGetPciInfo(self.links[handle][number])

    def nvmlDeviceGetFieldValues(self, handle: int, fields: list[int]) -> list[Any]:
        return [SimpleNamespace(nvmlReturn=0, value=SimpleNamespace(uiVal=26562))]

    def nvmlDeviceGetTopologyCommonAncestor(self, one: int, other: int) -> int:
        return 50

    def nvmlDeviceGetCurrPcieLinkWidth(self, handle: int) -> int:
        return 8 if handle == 3 else 16

    def nvmlDeviceGetCurrPcieLinkGeneration(self, handle: int) -> int:
        return 5

    def nvmlDeviceGetPerformanceState(self, handle: int) -> int:
        return 0


def test_nvml_tells_links_to_gpus_and_switches() -> None:
    document = nvml.read(FakeNvml())
    topology = NodeTopology.from_dict(document)
    links = {(one.a, one.b): (one.type, one.count, one.gigabytes_per_s) for one in topology.links}
    assert links[0, 1] == (LinkType.NVLINK, 2, 53.124)
    assert links[2, 3] == (LinkType.NVLINK, 3, 79.686)
    assert links[0, 2] == (LinkType.SYS, None, None)
    facts = details_of([Reading("nvml", json.dumps(document))])
    assert facts.versions == {"nvidia": "580.65.06"}
    assert {one.pci: (one.width, one.gt_per_s, one.idles) for one in facts.pcie}[outputs.pci(3)] == (8, 32.0, False)


def test_without_a_driver_nvml_is_absent() -> None:
    sources = Sources(only=["nvml"])
    (reading,) = scan(sources).readings
    assert reading.problem is CollectorProblem.ABSENT or (reading.problem is None and "gpus" in reading.text)


def scan(sources: Sources) -> ScanResult:
    return asyncio.run(Scanner(sources.collectors()).scan())


def plant(folder: Path, files: dict[str, str]) -> None:
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)


def link(path: Path, target: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(target, target_is_directory=True)


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
