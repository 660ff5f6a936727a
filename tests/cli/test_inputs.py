"""Whatever is given as INPUT: a clear refusal that names it, in one line, and nothing on stdout."""

from pathlib import Path

import pytest

from kopt.cli.local.checks import free_port
from tests.cli.conftest import Done, Kopt

VERBS = [
    ("demand", "forecast", "{input}"),
    ("demand", "lend", "{input}"),
    ("demand", "explain", "{input}", "--series", "chat"),
    ("demand", "backtest", "{input}", "--out", "{out}", "--model", "shipped"),
    ("demand", "backtest", "{input}", "--out", "{out}", "--group-cv", "source"),
    ("train", "demand", "--data", "{input}"),
]
BAD: dict[str, bytes] = {
    "empty.parquet": b"",
    "empty.csv": b"",
    "header-only.csv": b"series,t,value\n",
    "binary.csv": bytes(range(256)) * 50,
    "torn.parquet": b"PAR1" + bytes(200),
    "other-columns.csv": b"a,b\n1,2\n",
    "text.csv": b"series,t,value\nchat,0,many\n",
    "negative.csv": b"series,t,value\nchat,0,1\nchat,300,-1\n",
    "backwards.csv": b"series,t,value\nchat,300,1\nchat,0,1\n",
    "one-row.csv": b"series,t,value\nchat,0,1\n",
    "long-line.csv": b"x" * (2 << 20),
    "hostile.csv": b"series,t,value\n\x1b]0;owned\x07,0,1\n",
}


def run(kopt: Kopt, verb: tuple[str, ...], given: Path) -> Done:
    return kopt(*(part.format(input=given, out=given.parent / "out.parquet") for part in verb))


def check(done: Done, name: str) -> None:
    assert (done.status, done.out) == (1, ""), (name, done)
    line = done.err.splitlines()[-1]
    assert line.startswith("kopt: ")
    assert "KOPT_DEBUG" not in line, f"an error that was not foreseen: {line}"
    assert "\x1b" not in line


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: f"{verb[1]}-{verb[-2]}")
def test_bad_input_is_refused_by_every_verb(kopt: Kopt, verb: tuple[str, ...], tmp_path: Path) -> None:
    for name, content in BAD.items():
        folder = tmp_path / name.replace(".", "-")
        folder.mkdir()
        (folder / name).write_bytes(content)
        check(run(kopt, verb, folder / name), name)
        assert not (folder / "out.parquet").exists()


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: f"{verb[1]}-{verb[-2]}")
def test_what_is_not_there_is_refused_with_its_name(kopt: Kopt, verb: tuple[str, ...], tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    for given in (tmp_path / "absent.parquet", empty, Path("/dev/null")):
        done = run(kopt, verb, given)
        check(done, str(given))
        assert str(given) in done.err


def test_a_series_that_is_not_there_is_named_with_those_that_are(kopt: Kopt, demand_folder: Path) -> None:
    done = kopt("demand", "forecast", str(demand_folder), "--series", "nonesuch")
    check(done, "series")
    assert "'nonesuch'" in done.err
    assert "chat" in done.err


def test_a_prometheus_that_is_down_is_refused_with_its_address(kopt: Kopt) -> None:
    url = f"http://127.0.0.1:{free_port('127.0.0.1')}"
    done = kopt("demand", "forecast", url, "--query", "sum by (service) (increase(x[$step]))")
    check(done, url)
    assert url.removeprefix("http://") in done.err


def test_an_output_folder_that_is_not_there_is_refused_before_the_work(kopt: Kopt, demand_folder: Path) -> None:
    done = kopt("demand", "backtest", str(demand_folder), "--out", "/nonesuch/p.parquet", "--group-cv", "source")
    check(done, "out")
    assert "/nonesuch" in done.err


def test_a_single_group_cannot_be_cross_validated(kopt: Kopt, demand_folder: Path, tmp_path: Path) -> None:
    done = kopt(
        "demand",
        "backtest",
        str(demand_folder),
        "--out",
        str(tmp_path / "p"),
        "--group-cv",
        "source",
        "--series",
        "chat-00",
    )
    check(done, "groups")
    assert "one group only" in done.err
