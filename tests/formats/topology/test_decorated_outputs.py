"""What terminals, loggers and people put around an output changes nothing in what is read."""

import re
from collections.abc import Callable

import pytest
import topology_outputs as rendered
from example_budget import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from topology_outputs import PRINTERS, Printer, machine, pasted, read

from kopt.formats.topology import FormatError, parse


def _each(prefix: Callable[[int], str]) -> Callable[[str], str]:
    return lambda text: "".join(f"{prefix(n)}{line}\n" for n, line in enumerate(text.splitlines()))


MESSAGES = (
    "Unable to determine the device handle for GPU 0000:C1:00.0: Unknown Error",
    "WARNING: infoROM is corrupted at gpu 0000:3B:00.0",
)
DECORATIONS: dict[str, Callable[[str], str]] = {
    "line ends of Windows": lambda text: text.replace("\n", "\r\n"),
    "line ends doubled": lambda text: text.replace("\n", "\r\r\n"),
    "a byte order mark": lambda text: "\ufeff" + text,
    "kubectl logs --timestamps": _each(lambda n: f"2026-03-14T08:12:{n % 60:02}.123456789Z "),
    "kubectl logs --prefix": _each(lambda _: "[pod/agent-x7k2p/agent] "),
    "kubectl logs with both": _each(lambda n: f"[pod/agent-x7k2p/agent] 2026-03-14T08:12:{n % 60:02}Z "),
    "the container runtime's log": _each(lambda n: f"2026-03-14T08:12:{n % 60:02}.123456789Z stdout F "),
    "journalctl": _each(lambda n: f"Mar 14 08:12:{n % 60:02} gpu-node-1 agent[1234]: "),
    "time stamps in brackets": _each(lambda n: f"[2026-03-14 08:12:{n % 60:02}] "),
    "docker compose": _each(lambda _: "agent-1  | "),
    "srun --label": _each(lambda _: "0: "),
    "mpirun --tag-output": _each(lambda n: f"[1,{n % 2}]<stdout>:"),
    "the same, indented in a document": _each(lambda n: f"   [1,{n % 2}]<stdout>:"),
    "pdsh": _each(lambda _: "gpu-node-1: "),
    "a quotation": _each(lambda _: "> "),
    "an indented block": _each(lambda _: "    "),
    "a fenced block": lambda text: f"```\n{text}```\n",
    "a prompt": lambda text: f"root@gpu-7:~# some-tool --option\n{text}root@gpu-7:~# \n",
    "messages on both sides": lambda text: f"{MESSAGES[0]}\n\n{text}{MESSAGES[1]}\n",
    "an exit status": lambda text: f"{text}command terminated with exit code 0\n",
}
_NAME = re.compile(r"\b(GPU\d+|NIC\d+|XGMI|PCIE)\b")


@pytest.mark.parametrize("decoration", DECORATIONS)
@pytest.mark.parametrize("printer", PRINTERS)
@settings(max_examples=examples(15))
@given(seed=st.integers(0, 1 << 16), gpus=st.integers(2, 5))
def test_decoration_changes_nothing(printer: Printer, decoration: str, seed: int, gpus: int) -> None:
    text = printer(machine(seed, gpus))
    assert read(DECORATIONS[decoration](text)) == read(text)


@pytest.mark.parametrize("colour", ["\x1b[1;32m{}\x1b[0m", "[1m{}[0m", "^[[4m{}^[[0m"])
@pytest.mark.parametrize("printer", [pasted, rendered.rocm_topo, rendered.amd_topo])
def test_colours_change_nothing(printer: Printer, colour: str) -> None:
    text = printer(machine(7))
    assert read(_NAME.sub(lambda found: colour.format(found[1]), text)) == read(text) is not None


def test_tabs_or_blanks_are_the_same() -> None:
    assert read(pasted(machine(3))) == read(rendered.topo_m(machine(3), raw=False))


def test_a_unit_in_brackets_is_no_colour() -> None:
    text = "index, name, window [ms], power.draw [W], memory.total [MiB]\n0, NVIDIA L4, 5, 30.00 W, 23034 MiB\n"
    assert read(text) is not None


def test_a_message_within_a_matrix_does_no_harm_and_other_lines_do() -> None:
    lines = rendered.topo_m(machine(5)).splitlines()
    message = [*lines[:2], "WARNING: a message of the driver", *lines[2:], ""]
    other = [*lines[:2], "some other words", *lines[2:], ""]
    assert read("\n".join(message)) == read("\n".join([*lines, ""]))
    with pytest.raises(FormatError, match="line 3, column 1: the row of GPU1 is expected, not 'some'"):
        parse("\n".join(other))
