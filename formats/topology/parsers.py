"""The parsers of topology tools: a new one is its own module and a line here.

Order matters among parsers of one kind of input: the first that recognises an output reads it, so what knows links
comes before what lists devices.
"""

from kopt.formats.topology.amd import rocm_gpus, rocm_topo, rocm_topo_json
from kopt.formats.topology.amd import smi_gpus as amd_smi_gpus
from kopt.formats.topology.amd import smi_topo as amd_smi_topo
from kopt.formats.topology.exporters import gpustack
from kopt.formats.topology.exporters import prometheus as exporters
from kopt.formats.topology.fabric import ibnetdiscover, topograph
from kopt.formats.topology.linux import lspci, rdma, sysfs
from kopt.formats.topology.nccl import graph as nccl_graph
from kopt.formats.topology.nccl import tests as nccl_tests
from kopt.formats.topology.nccl import tests_json as nccl_tests_json
from kopt.formats.topology.nccl import topo as nccl_topo
from kopt.formats.topology.nvidia import full as nvidia_full
from kopt.formats.topology.nvidia import list as nvidia_list
from kopt.formats.topology.nvidia import mig as nvidia_mig
from kopt.formats.topology.nvidia import query as nvidia_query
from kopt.formats.topology.nvidia import table as nvidia_table
from kopt.formats.topology.nvidia import topo as nvidia_topo
from kopt.formats.topology.parser import Parser

PARSERS: tuple[Parser, ...] = (
    nccl_topo.PARSER,
    nccl_graph.PARSER,
    nccl_tests.PARSER,
    rocm_topo.PARSER,
    amd_smi_topo.PARSER,
    nvidia_topo.PARSER,
    nvidia_full.PARSER,
    nvidia_table.PARSER,
    nvidia_mig.PARSER,
    nvidia_list.PARSER,
    amd_smi_gpus.PARSER,
    rocm_gpus.PARSER,
    ibnetdiscover.PARSER,
    rdma.PARSER,
    lspci.PARSER,
    exporters.PARSER,
    nvidia_query.PARSER,
    topograph.PARSER,
    nccl_tests_json.PARSER,
    rocm_topo_json.PARSER,
    amd_smi_topo.JSON_PARSER,
    gpustack.PARSER,
    amd_smi_gpus.JSON_PARSER,
    rocm_gpus.JSON_PARSER,
    sysfs.PARSER,
)
