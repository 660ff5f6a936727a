"""``kopt reasons`` looks codes up, and is as quick as a command that only reads a table can be."""

import csv
import io

from repository.test_light_imports import HEAVY, loaded_by

from kopt.cli.reasons.commands import completed
from kopt.core.reason_codes.catalogue import reason_codes
from tests.cli.conftest import Kopt


def test_all_codes_are_listed_by_area(kopt: Kopt) -> None:
    done = kopt("reasons", "-o", "csv")
    rows = list(csv.DictReader(io.StringIO(done.out)))
    assert {row["code"] for row in rows} == set(reason_codes())
    assert [row["area"] for row in rows] == sorted(row["area"] for row in rows)
    assert len(rows) > len(reason_codes())
    assert "NO_MODEL" in kopt("reasons").out


def test_a_code_has_its_meaning_in_each_area_what_to_do_and_where_it_is_documented(kopt: Kopt) -> None:
    done = kopt("reasons", "HOLD")
    assert done.status == 0
    for meaning in reason_codes()["HOLD"]:
        assert meaning.means in " ".join(done.out.split())
        assert meaning.do in " ".join(done.out.split())
    assert "reasons.html#hold" in done.out
    assert len(reason_codes()["HOLD"]) == 2


def test_where_nothing_has_to_be_done_that_is_said(kopt: Kopt) -> None:
    assert "What to do: Nothing has to be done." in kopt("reasons", "RUNS").out


def test_a_document_has_the_same(kopt: Kopt) -> None:
    document = kopt("reasons", "no-model", "-o", "json").json
    (meaning,) = document["meanings"]
    assert (document["code"], document["page"]) == ("NO_MODEL", "reasons.html#no_model")
    assert (meaning["area"], meaning["means"]) == ("serving", reason_codes()["NO_MODEL"][0].means)


def test_a_near_miss_names_the_nearest_code(kopt: Kopt) -> None:
    done = kopt("reasons", "NO_MODLE")
    assert done.status == 2
    assert "did you mean NO_MODEL?" in " ".join(done.err.split())
    assert "kopt reasons lists them all" in " ".join(kopt("reasons", "QQQQ").err.split())


def test_codes_are_completed() -> None:
    assert completed("NO_MOD") == ["NO_MODEL"]
    assert completed("") == list(reason_codes())


def test_the_command_loads_nothing_heavy() -> None:
    loaded = loaded_by("kopt.cli.reasons.commands")
    assert not loaded & {*HEAVY, "numpy", "rich"}
