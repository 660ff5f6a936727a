"""Reading nodes and pods of the openb trace, and everything else that people may hand over."""

from pathlib import Path

import pytest

from kopt.core.units import MIB
from kopt.data.jobs.openb import TraceError, read_nodes, read_pods

NODE_HEAD = "sn,cpu_milli,memory_mib,gpu,model\n"
POD_HEAD = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,creation_time,deletion_time\n"


def written(folder: Path, text: str) -> Path:
    path = folder / "trace.csv"
    path.write_bytes(text.encode())
    return path


def test_nodes_have_their_gpus(tmp_path: Path) -> None:
    first, second = read_nodes(written(tmp_path, NODE_HEAD + "n-0,64000,262144,2,P100\nn-1,32000,131072,0,\n"))
    assert (first.name, first.cpu_free_milli, first.memory_free_bytes) == ("n-0", 64_000, 262_144 * MIB)
    assert [(gpu.index, gpu.model) for gpu in first.gpus] == [(0, "P100"), (1, "P100")]
    assert second.gpus == ()


def test_pods_ask_for_shares_whole_gpus_or_none(tmp_path: Path) -> None:
    rows = "a,6000,12288,1,460,,427061,12902960\nb,88000,1,8,1000,V100M16|V100M32|V100M32,,\nc,100,1,0,0,,5,\n"
    a, b, c = read_pods(written(tmp_path, POD_HEAD + rows))
    assert (a.request.gpus.count, a.request.gpus.share, a.created_s, a.deleted_s) == (1, 460, 427061, 12902960)
    assert (b.request.gpus.count, b.request.gpus.models) == (8, ("V100M16", "V100M32"))
    assert (c.request.gpus.count, c.request.gpus.total, c.deleted_s) == (0, 0, None)


def test_variants_without_models_and_times_are_read_too(tmp_path: Path) -> None:
    text = "\ufeffname,cpu_milli,memory_mib,num_gpu,gpu_milli\r\np,1000,1,1,1000\r\n"
    (pod,) = read_pods(written(tmp_path, text))
    assert (pod.request.gpus.models, pod.created_s) == ((), None)


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        ("a,x,1,1,500,,,", "line 2: cpu_milli is 'x', not a whole number"),
        ("a,1,1,1,500,,,\nb,-1,1,1,500,,,", "line 3: cpu_milli is -1, expected 0 to"),
        ("a,1,1,1,1001,,,", "gpu_milli is 1001, expected 0 to 1000"),
        ("a,1,1,1,0,,,", "is not a request"),
        ("a,1,1,2,500,,,", "a share of a GPU is only for workloads on one GPU"),
        ("a,1,1,99999999999,1000,,,", "num_gpu is 99999999999"),
        ("a,1", "num_gpu is ''"),
        (",1,1,1,500,,,", "a pod needs a name"),
        ("a,1,1,1,500,,soon,", "creation_time is 'soon', not seconds"),
        ("a,1,1,1,500,,,\na,1,1,1,500,,,", "pods named 'a' occur twice"),
        ("", "holds no pods"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(tmp_path: Path, rows: str, told: str) -> None:
    with pytest.raises(TraceError, match=r"trace\.csv") as refused:
        read_pods(written(tmp_path, POD_HEAD + rows))
    assert told in str(refused.value)


def test_other_files_are_refused_by_what_they_lack(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="no column sn, cpu_milli"):
        read_nodes(written(tmp_path, "a,b\n1,2\n"))
    with pytest.raises(TraceError, match="no column"):
        read_nodes(written(tmp_path, ""))
    with pytest.raises(TraceError, match="cannot be read"):
        read_nodes(tmp_path / "absent.csv")
    with pytest.raises(TraceError, match="cannot be read"):
        read_nodes(tmp_path)
    (tmp_path / "trace.csv").write_bytes(NODE_HEAD.encode() + b"\xff\xfe\x00,1,1,1,x\n")
    with pytest.raises(TraceError, match="cannot be read"):
        read_nodes(tmp_path / "trace.csv")
