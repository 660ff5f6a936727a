"""The documented receiver in a real Alertmanager: chat, mail and a webhook hear that an alert fires and ends.

Titles, texts, subjects and addressees are the page's. Replaced is where they go: the address of chat (``api_url``), and
of mail the server (``smarthost``) and that it be reached by TLS (``require_tls``), which this one does not speak. As
they stand these are only read by Alertmanager.
"""

import re
import socket
import socketserver
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from email import message_from_bytes, policy
from email.message import EmailMessage
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from controlplane.processes import wait_for

from kopt.core.times import stamp
from tests.alerts.alertmanager_server import Webhook, running_alertmanager

pytestmark = pytest.mark.services
PAGE = Path(__file__).resolve().parents[2] / "docs" / "alerts.md"
LABELS = {"alertname": "KoptGpuXidFatal", "severity": "critical", "node": "gpu-1", "gpu": "3", "xid": "79"}
SUMMARY = "GPU 3 of gpu-1 reported XID 79."


class Mailbox(socketserver.ThreadingTCPServer):
    """Takes mail as a server of SMTP does (RFC 5321), without TLS."""

    daemon_threads = allow_reuse_address = True

    def __init__(self) -> None:
        self.mails: list[EmailMessage] = []
        super().__init__(("127.0.0.1", 0), _Session)
        threading.Thread(target=self.serve_forever, daemon=True).start()


class _Session(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        self._say("220 mailbox")
        while line := self.rfile.readline():
            (command, *_) = line.upper().split(maxsplit=1) or [b""]
            if not command:
                self._say("500 no command")
                continue
            if command == b"DATA":
                self._say("354 go on")
                text = b"".join(iter(self.rfile.readline, b".\r\n"))
                mail: Any = message_from_bytes(text, policy=policy.default)
                self.server.mails.append(mail)  # type: ignore[attr-defined]
            self._say("221 bye" if command == b"QUIT" else "250 fine")
            if command == b"QUIT":
                return

    def _say(self, text: str) -> None:
        self.wfile.write(f"{text}\r\n".encode())


@pytest.fixture
def mailbox() -> Iterator[Mailbox]:
    server = Mailbox()
    yield server
    server.shutdown()
    server.server_close()


def test_the_mailbox_answers_a_line_without_a_command(mailbox: Mailbox) -> None:
    address: tuple[str, int] = mailbox.server_address  # type: ignore[assignment]
    with socket.create_connection(address, timeout=10) as connection, connection.makefile("rwb") as lines:
        lines.write(b"\r\nNOOP\r\nQUIT\r\n")
        lines.flush()
        assert [line[:3] for line in lines] == [b"220", b"500", b"250", b"221"]


@contextmanager
def _receivers() -> Iterator[tuple[Webhook, Webhook]]:
    webhook, chat = Webhook(), Webhook()
    try:
        yield webhook, chat
    finally:
        webhook.close()
        chat.close()


def _documented() -> dict[str, Any]:
    """As on the page."""
    match = re.search(r"<!-- receiver -->\n```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert match is not None
    receiver: dict[str, Any] = yaml.safe_load(match[1])
    return {"slack_configs": receiver["slack_configs"], "email_configs": receiver["email_configs"]}


def _addressed(receiver: dict[str, Any], chat: str, mail: str) -> dict[str, Any]:
    """At the addresses of this test."""
    (slack,), (email,) = receiver["slack_configs"], receiver["email_configs"]
    slack["api_url"] = chat
    email |= {"smarthost": mail, "require_tls": False}
    return {"slack_configs": [slack], "email_configs": [email]}


def _post(address: str, ends_s: float) -> None:
    alert = {
        "labels": LABELS,
        "annotations": {"summary": SUMMARY, "description": "Drain the node."},
        "endsAt": stamp(ends_s),
    }
    httpx.post(f"http://{address}/api/v2/alerts", json=[alert], trust_env=False).raise_for_status()


def test_alertmanager_accepts_the_receiver_as_it_stands_on_the_page(tmp_path: Path) -> None:
    route = {"group_by": ["alertname"]}
    with _receivers() as (webhook, _), running_alertmanager(tmp_path, webhook, route, _documented()) as address:
        wait_for(lambda: httpx.get(f"http://{address}/-/ready", trust_env=False).is_success)
        configuration = httpx.get(f"http://{address}/api/v2/status", trust_env=False).json()["config"]["original"]
    assert "smarthost: mail.example.com:587" in configuration


def test_chat_mail_and_webhook_hear_of_an_alert_and_of_its_end(mailbox: Mailbox, tmp_path: Path) -> None:
    route = {"group_by": ["alertname"], "group_wait": "0s", "group_interval": "1s"}
    with _receivers() as (webhook, chat):
        more = _addressed(_documented(), chat.url, f"127.0.0.1:{mailbox.server_address[1]}")
        with running_alertmanager(tmp_path, webhook, route, more) as address:
            wait_for(lambda: httpx.get(f"http://{address}/-/ready", trust_env=False).is_success)
            _post(address, time.time() + 600)
            wait_for(lambda: webhook.received and chat.received and mailbox.mails, what="all three are notified")
            _post(address, time.time() - 1)
            wait_for(lambda: len(chat.received) > 1 and len(mailbox.mails) > 1, what="all three hear of its end")
            assert wait_for(lambda: webhook.alerts(LABELS["alertname"], "resolved"))
    fires, ends = (document["attachments"][0] for _, document in chat.received[:2])
    assert (fires["title"], ends["title"]) == (
        "FIRING critical: KoptGpuXidFatal",
        "RESOLVED critical: KoptGpuXidFatal",
    )
    assert fires["text"].strip() == f"{SUMMARY} Drain the node."
    assert chat.received[0][1]["channel"] == "#gpus"
    subjects = [mail["Subject"] for mail in mailbox.mails[:2]]
    assert subjects == ["[firing] KoptGpuXidFatal (critical)", "[resolved] KoptGpuXidFatal (critical)"]
    assert mailbox.mails[0]["To"] == "gpus@example.com"
    body = mailbox.mails[0].get_body(("html", "plain"))
    assert body is not None
    assert SUMMARY in body.get_content()
