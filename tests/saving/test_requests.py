"""What a program sees of requests: each once, through absent, torn, huge and swapped files, and on wrong clocks."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kopt.core.workload.checkpoint_request import REQUEST_ANNOTATION, SaveRequest
from kopt.saving import SaveRequests
from kopt.saving.requests import request_in

NOW_S = 1_900_000_000.0


class Pod:
    """The folder of a downward API volume, as kubelet swaps it, and a clock."""

    def __init__(self, folder: Path) -> None:
        self.now_s, self._folder, self._number = NOW_S, folder, 0
        self.file = folder / "annotations"

    def show(self, request: SaveRequest | None, **others: str) -> None:
        notes = others | ({REQUEST_ANNOTATION: request.to_text()} if request else {})
        self.write("".join(f"{name}={quoted(value)}\n" for name, value in sorted(notes.items())))

    def write(self, text: str) -> None:
        self._number += 1
        place = self._folder / f"..{self._number}"
        place.mkdir()
        (place / "annotations").write_text(text, encoding="utf-8", errors="surrogatepass")
        fresh = self._folder / "..fresh"
        fresh.symlink_to(place)
        fresh.rename(self._folder / "..data")
        if not self.file.is_symlink():
            self.file.symlink_to("..data/annotations")

    def ask(self, until_s: float = 60.0, by: str = "us") -> SaveRequest:
        request = SaveRequest.of(by, "because", self.now_s, self.now_s + until_s)
        self.show(request)
        return request


@pytest.fixture
def pod(tmp_path: Path) -> Pod:
    return Pod(tmp_path)


@pytest.fixture
def requests(pod: Pod) -> SaveRequests:
    return SaveRequests(pod.file, lambda: pod.now_s)


def quoted(value: str) -> str:
    """As Go's %q, as far as tests need it."""
    return json.dumps(value, ensure_ascii=False)


def test_a_request_is_true_once(pod: Pod, requests: SaveRequests) -> None:
    assert not requests.asked()
    pod.show(None, other="x")
    assert not requests.asked()
    request = pod.ask()
    assert requests.asked()
    assert requests.last == request
    assert not requests.asked()
    pod.show(request, other="something else changed")
    assert not requests.asked()
    pod.now_s += 30
    pod.ask()
    assert requests.asked()


def test_it_counts_from_the_second_that_it_names(pod: Pod, requests: SaveRequests) -> None:
    """A checkpoint that began before would have the stamp of an earlier second."""
    pod.now_s += 0.25
    pod.ask()
    assert not requests.asked()
    pod.now_s += 0.75
    assert requests.asked()


def test_a_clock_that_is_far_behind_is_not_waited_for(pod: Pod, requests: SaveRequests) -> None:
    pod.ask()
    pod.now_s -= 3600
    assert requests.asked()


def test_a_clock_that_is_far_ahead_does_not_hide_a_new_request(pod: Pod, requests: SaveRequests) -> None:
    pod.show(None)
    assert not requests.asked()
    pod.ask(until_s=1.0)
    pod.now_s += 3600
    assert requests.asked()


def test_what_was_over_when_the_program_began_is_not_answered(pod: Pod, requests: SaveRequests) -> None:
    pod.ask(until_s=10.0)
    pod.now_s += 11
    assert not requests.asked()
    pod.ask()
    assert requests.asked()


def test_what_still_waits_when_the_program_begins_is_answered(pod: Pod) -> None:
    pod.ask(until_s=60.0)
    pod.now_s += 30
    assert SaveRequests(pod.file, lambda: pod.now_s).asked()


def test_a_checkpoint_of_its_own_answers_a_request_that_is_on_its_way(pod: Pod, requests: SaveRequests) -> None:
    request = SaveRequest.of("us", "", pod.now_s, pod.now_s + 60)
    pod.now_s += 5
    requests.saved()
    pod.now_s += 5
    pod.show(request)
    assert not requests.asked()
    pod.ask()
    assert requests.asked()


def test_an_earlier_checkpoint_does_not(pod: Pod, requests: SaveRequests) -> None:
    requests.saved()
    pod.now_s += 1
    pod.ask()
    assert requests.asked()


@given(st.integers(0, 400))
def test_a_torn_file_is_no_request_or_the_whole_one(cut: int) -> None:
    text = f'a="b"\n{REQUEST_ANNOTATION}={quoted(SaveRequest.of("us", "x", NOW_S, NOW_S).to_text())}\nz=""\n'
    assert request_in(text[:cut]) in (None, request_in(text))
    assert request_in(text) is not None


@given(st.text(st.characters(blacklist_categories=["Cs"])))
def test_every_reason_is_read_back(reason: str) -> None:
    request = SaveRequest.of("us", reason, NOW_S, NOW_S)
    assert request_in(f"{REQUEST_ANNOTATION}={quoted(request.to_text())}\n") == request


def test_the_escapes_of_go_are_read() -> None:
    text = r'"{\"at\":\"2030-03-17T17:46:40Z\",\"until\":\"2030-03-17T17:46:41Z\",\"by\":\"\u00fc\U0001f600\x41\"}"'
    found = request_in(f"{REQUEST_ANNOTATION}={text}")
    assert found == SaveRequest(NOW_S, NOW_S + 1, "ü😀A")


def test_torn_then_whole_is_asked_once(pod: Pod, requests: SaveRequests) -> None:
    pod.write(f'{REQUEST_ANNOTATION}="{{\\"at')
    assert not requests.asked()
    request = pod.ask()
    assert requests.asked()
    pod.write("")
    assert not requests.asked()
    pod.show(request)
    assert not requests.asked()


def test_a_huge_file_is_passed_over(pod: Pod, requests: SaveRequests) -> None:
    request = SaveRequest.of("us", "", pod.now_s, pod.now_s + 9)
    pod.show(request, big="x" * (5 << 20))
    assert not requests.asked()
    pod.show(request)
    assert requests.asked()


def test_a_folder_or_an_unreadable_file_is_no_request(tmp_path: Path) -> None:
    assert not SaveRequests(tmp_path).asked()


def test_nothing_is_read_as_long_as_nothing_changes(
    pod: Pod, requests: SaveRequests, monkeypatch: pytest.MonkeyPatch
) -> None:
    pod.ask()
    assert requests.asked()
    monkeypatch.setattr(Path, "open", lambda *_, **__: pytest.fail("read again"))
    assert not requests.asked()


# --- kopt agent save-hook -------------------------------------------------------------------------------------------

HOOK = [sys.executable, "-P", "-c", "from kopt.cli.main import app; app()", "agent", "save-hook", "--every=0.05"]


@pytest.fixture
def hook(pod: Pod) -> "Callable[..., subprocess.Popen[bytes]]":
    running = []

    def start(*command: str, options: tuple[str, ...] = ()) -> "subprocess.Popen[bytes]":
        words = [*HOOK, f"--file={pod.file}", *options, "--", *command]
        running.append(subprocess.Popen(words, stderr=subprocess.PIPE))
        return running[-1]

    yield start  # type: ignore[misc]
    for one in running:
        one.kill()
        one.wait()


def eventually(condition: Callable[[], object]) -> None:
    ends_s = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < ends_s
        time.sleep(0.05)


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def test_the_hook_runs_its_command_once_for_each_request(
    pod: Pod, hook: Callable[..., "subprocess.Popen[bytes]"], tmp_path: Path
) -> None:
    log = tmp_path / "log"
    one = hook("sh", "-c", f'echo "$KOPT_SAVE_BY $KOPT_SAVE_AT" >> {log}; exit 3')
    pod.now_s = time.time() - 5
    first = pod.ask()
    eventually(lambda: lines(log))
    pod.write('torn="')
    pod.show(first)
    pod.now_s += 2
    second = pod.ask(by="them")
    eventually(lambda: len(lines(log)) == 2)
    assert lines(log) == [f"us {first.at_s:.0f}", f"them {second.at_s:.0f}"]
    one.terminate()
    assert one.wait(30) == 0


@pytest.mark.parametrize("by", ["a\0b", "\ud800", "x" * 200_000])
def test_whatever_words_a_request_has_the_command_is_run(
    pod: Pod, hook: Callable[..., "subprocess.Popen[bytes]"], tmp_path: Path, by: str
) -> None:
    log = tmp_path / "log"
    hook("sh", "-c", f"echo saved >> {log}")
    found = json.dumps({"at": "2020-01-01T00:00:00Z", "until": "2100-01-01T00:00:00Z", "by": by})
    pod.write(f"{REQUEST_ANNOTATION}={json.dumps(found)}")
    eventually(lambda: lines(log) == ["saved"])


def test_a_command_that_hangs_is_ended_and_the_next_request_is_answered(
    pod: Pod, hook: Callable[..., "subprocess.Popen[bytes]"], tmp_path: Path
) -> None:
    log = tmp_path / "log"
    hook("sh", "-c", f"echo >> {log}; exec sleep 1000", options=("--timeout=0.2",))
    pod.now_s = time.time() - 5
    pod.ask()
    eventually(lambda: lines(log))
    pod.now_s += 2
    pod.ask()
    eventually(lambda: len(lines(log)) == 2)


def test_the_command_ends_with_the_hook(
    pod: Pod, hook: Callable[..., "subprocess.Popen[bytes]"], tmp_path: Path
) -> None:
    log = tmp_path / "pid"
    one = hook("sh", "-c", f"echo $$ > {log}; exec sleep 1000")
    pod.now_s = time.time() - 5
    pod.ask()
    eventually(lambda: lines(log))
    one.terminate()
    assert one.wait(30) == 0
    pid = int(lines(log)[0])
    eventually(lambda: not Path(f"/proc/{pid}").exists())
    assert not os.path.exists(f"/proc/{pid}")  # noqa: PTH110


def test_a_command_that_is_not_there_is_told(pod: Pod, hook: Callable[..., "subprocess.Popen[bytes]"]) -> None:
    one = hook("/no/such/command")
    pod.now_s = time.time() - 5
    pod.ask()
    assert one.stderr is not None
    assert any(b"cannot be run" in line for line in one.stderr)


def test_spans_must_be_positive() -> None:
    done = subprocess.run([*HOOK, "--timeout=0", "--", "true"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "--timeout" in done.stderr
