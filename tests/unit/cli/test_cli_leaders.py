"""A command that asks a standby goes on to the leader that it names: with the same token, once, or it says whom to ask."""

from __future__ import annotations

import json
import re
import ssl
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import msgspec
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from typer.testing import CliRunner

from multisched.cli.commands import app
from multisched.framework.leading import Leader, NotLeadingError, NotLedHere, Problem
from multisched.observe.explain_view import PodView, encode_view
from multisched.observe.queue_view import DomainQueue, QueueView, WaitingPod, encode_queue

POD = "/api/v1/explain/pod/default/late"
NOBODY = "http://127.0.0.1:9"
VIEW = PodView(
    namespace="default",
    name="late",
    uid="u",
    scheduler="job-scheduler",
    domain="job",
    state="unschedulable",
    waiting_for="an event that can help NodeResourcesFit",
)


@dataclass
class Replica:
    """Answers by path; any other one is not found."""

    answers: dict[str, tuple[int, str, bytes]] = field(default_factory=dict)
    asked: list[tuple[str, str]] = field(default_factory=list)
    """Path and Authorization of each request."""
    url: str = ""

    def says(self, path: str, body: bytes) -> None:
        self.answers[path] = (200, "application/json", body)

    def stands_by(self, path: str, led: NotLedHere) -> None:
        problem = Problem.of(NotLeadingError(led))
        self.answers[path] = (problem.status, "application/problem+json", msgspec.json.encode(problem))

    @contextmanager
    def serving(self, tls: ssl.SSLContext | None = None) -> Iterator[Replica]:
        replica = self

        class Answer(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                path = self.path.partition("?")[0]
                domain = self.path.partition("domain=")[2].partition("&")[0]
                replica.asked.append((self.path, self.headers.get("Authorization", "")))
                key = f"{path}?{domain}" if domain else path
                status, kind, body = replica.answers.get(key, (404, "text/plain", b"no such thing"))
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002
                """Quiet."""

        with HTTPServer(("127.0.0.1", 0), Answer) as server:
            if tls is not None:
                server.socket = tls.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
            self.url = f"http{'s' if tls else ''}://127.0.0.1:{server.server_port}"
            thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
            thread.start()
            try:
                yield self
            finally:
                server.shutdown()
                thread.join()


@contextmanager
def pair() -> Iterator[tuple[Replica, Replica]]:
    with ExitStack() as stack:
        yield stack.enter_context(Replica().serving()), stack.enter_context(Replica().serving())


def call(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, arguments)
    return result.exit_code, result.stdout, result.stderr


def led_by(address: str, domain: str = "job") -> NotLedHere:
    return NotLedHere(domain, Leader("pod-a-1f", address, "2026-01-01T00:00:00.000000Z"))


def queue_of(domain: str, pods: Mapping[str, float], *, left_out: int = 0) -> QueueView:
    """Pods by how long they wait."""
    return QueueView(
        domains=(DomainQueue(domain=domain, scheduler_names=(f"{domain}-scheduler",), is_leading=True, counts={}),),
        pods=tuple(
            WaitingPod(domain=domain, state="active", namespace="default", name=name, uid=name, waiting_s=waiting_s)
            for name, waiting_s in pods.items()
        ),
        left_out=left_out,
    )


def test_leader_response_is_printed_for_any_queried_replica(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("secret")
    with pair() as (standby, leader):
        standby.stands_by(POD, led_by(leader.url))
        leader.says(POD, encode_view(VIEW))
        code, out, err = call("explain", "pod", "late", "--fix", "--server", standby.url, "--token-file", str(token))
    assert (code, err) == (0, "")
    assert "an event that can help NodeResourcesFit" in out
    assert standby.asked == leader.asked
    assert [(path.partition("?")[0], authorization) for path, authorization in leader.asked] == [(POD, "Bearer secret")]


def test_second_redirect_to_a_leader_is_not_followed() -> None:
    with pair() as (standby, leader):
        standby.stands_by(POD, led_by(leader.url))
        leader.stands_by(POD, NotLedHere("job", Leader("pod-b-2e", standby.url)))
        code, out, err = call("explain", "pod", "late", "--server", standby.url)
    assert (code, out) == (1, "")
    assert "led by pod-a-1f" in err
    assert f"but that one reports: domain job is led by pod-b-2e at {standby.url}; retry in a moment" in err
    assert (len(standby.asked), len(leader.asked)) == (1, 1)


def test_unreachable_leader_is_named_with_the_next_step() -> None:
    with Replica().serving() as standby:
        standby.stands_by(POD, led_by(NOBODY))
        code, out, err = call("explain", "pod", "late", "--server", standby.url)
    assert (code, out) == (3, "")
    assert (
        f"domain job is led by pod-a-1f since 2026-01-01T00:00:00.000000Z at {NOBODY}, which does not respond: " in err
    )
    assert err.endswith("; give a reachable address with --server, or use its cluster with --context NAME\n")


@pytest.mark.parametrize(
    ("led", "told"),
    [
        (NotLedHere("job"), "no replica leads domain job at the moment; ask again in a few seconds"),
        (NotLedHere("job", is_taken_over=True), "domain job is being taken over by this replica; ask again"),
        (led_by(""), "whose Lease has no address"),
    ],
)
def test_missing_leader_is_reported_with_the_reason(led: NotLedHere, told: str) -> None:
    with Replica().serving() as standby:
        standby.stands_by(POD, led)
        code, out, err = call("explain", "pod", "late", "--server", standby.url)
    assert (code, out, told in err) == (1, "", True)


def test_refusal_of_the_leader_is_reported_as_its_own() -> None:
    with pair() as (standby, leader):
        standby.stands_by(POD, led_by(leader.url))
        code, _, err = call("explain", "pod", "late", "--server", standby.url)
    assert (code, err) == (2, f"multisched: {leader.url} returned 404: no such thing\n")


def test_token_is_not_sent_to_a_remote_leader_over_http(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("secret")
    with Replica().serving() as standby:
        standby.stands_by(POD, led_by("http://192.0.2.1:10260"))
        code, _, err = call("explain", "pod", "late", "--server", standby.url, "--token-file", str(token))
    assert code == 2
    assert "the token would be sent unencrypted" in err


def test_queues_of_all_leaders_are_merged() -> None:
    with pair() as (first, second):
        mine = queue_of("gpu", {"old": 90.0, "new": 10.0}, left_out=1)
        elsewhere = (led_by(second.url, "forecast"), led_by(second.url, "job"))
        first.says("/api/v1/queue", encode_queue(msgspec.structs.replace(mine, elsewhere=elsewhere)))
        second.says("/api/v1/queue?forecast", encode_queue(queue_of("forecast", {"web": 50.0}, left_out=3)))
        second.says("/api/v1/queue?job", encode_queue(queue_of("job", {"burst": 70.0})))
        code, out, err = call("queue", "--limit", "3", "-o", "json", "--server", first.url)
    assert (code, err) == (0, "")
    view = json.loads(out)
    assert [domain["domain"] for domain in view["domains"]] == ["forecast", "gpu", "job"]
    assert [pod["name"] for pod in view["pods"]] == ["old", "burst", "web"]
    assert (view["leftOut"], view["elsewhere"]) == (5, [])


def test_reachable_queues_are_shown_with_errors_of_the_others() -> None:
    with Replica().serving() as standby:
        elsewhere = (led_by(NOBODY, "forecast"), NotLedHere("job"))
        view = msgspec.structs.replace(queue_of("gpu", {"old": 90.0}), elsewhere=elsewhere)
        standby.says("/api/v1/queue", encode_queue(view))
        code, out, err = call("queue", "--server", standby.url)
        assert code == 3
        assert "old" in out
        assert f"domain forecast is led by pod-a-1f since 2026-01-01T00:00:00.000000Z at {NOBODY}" in err
        assert "no replica leads domain job at the moment" in err
        nothing = QueueView(domains=(), pods=(), elsewhere=(NotLedHere("job"),))
        standby.says("/api/v1/queue", encode_queue(nothing))
        code, out, err = call("queue", "--server", standby.url)
        assert (code, out) == (1, "")


def test_domains_of_one_leader_share_one_error_and_timeout() -> None:
    with Replica().serving() as standby:
        elsewhere = [led_by(NOBODY, domain) for domain in ("forecast", "gpu")]
        elsewhere += [NotLedHere("job"), NotLedHere("batch")]
        elsewhere[0] = msgspec.structs.replace(elsewhere[0], runs_out_in_s=3600.0)
        standby.says("/api/v1/queue", encode_queue(QueueView(domains=(), pods=(), elsewhere=tuple(elsewhere))))
        code, out, err = call("queue", "--server", standby.url)
    assert (code, out) == (3, "")
    assert f"domains forecast, gpu are led by pod-a-1f since 2026-01-01T00:00:00.000000Z at {NOBODY}" in err
    assert re.search(r"; unless it renews its lease, another replica can lead in 3[56]\d\d s; give a reachable", err)
    assert "no replica leads domains job, batch at the moment; ask again in a few seconds" in err
    assert err.count("led by") == err.count("no replica") == 1


def authority_and_pair(folder: Path, name: str) -> tuple[Path, ssl.SSLContext]:
    """A certificate for one DNS name that signs itself."""
    key = ec.generate_private_key(ec.SECP256R1())
    who = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    builder = x509.CertificateBuilder(who, who, key.public_key(), x509.random_serial_number())
    builder = builder.not_valid_before(datetime(2020, 1, 1, tzinfo=UTC)).not_valid_after(
        datetime(2050, 1, 1, tzinfo=UTC)
    )
    builder = builder.add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
    certificate = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True).sign(
        key, hashes.SHA256()
    )
    pem, private = folder / f"{name}.pem", folder / f"{name}.key"
    pem.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    private.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem, private)
    return pem, context


@pytest.mark.parametrize("of_leader", ["localhost", "elsewhere.example"])
def test_leader_certificate_is_valid_for_its_host_or_the_given_name(tmp_path: Path, of_leader: str) -> None:
    """Replicas share the certificate of their Service; the leader is asked by its IP."""
    ca, of_standby = authority_and_pair(tmp_path, "localhost")
    other, tls = (ca, of_standby) if of_leader == "localhost" else authority_and_pair(tmp_path, of_leader)
    trusted = tmp_path / "trusted.pem"
    trusted.write_bytes(ca.read_bytes() + other.read_bytes())
    with Replica().serving(of_standby) as standby, Replica().serving(tls) as leader:
        standby.stands_by(POD, led_by(leader.url))
        leader.says(POD, encode_view(VIEW))
        asked = standby.url.replace("127.0.0.1", "localhost")
        code, _, err = call("explain", "pod", "late", "--server", asked, "--ca-file", str(trusted))
    is_good = of_leader == "localhost"
    assert code == (0 if is_good else 3)
    assert ("certificate verify failed" in err) is not is_good
    assert bool(leader.asked) is is_good


def test_error_names_the_scheme_that_the_port_uses(tmp_path: Path) -> None:
    _, tls = authority_and_pair(tmp_path, "localhost")
    with Replica().serving(tls) as secured, Replica().serving() as plain:
        of_secured, of_plain = secured.url.partition("//")[2], plain.url.partition("//")[2]
        code, _, err = call("queue", "--server", f"http://{of_secured}")
        assert (code, f"it speaks TLS: write https://{of_secured}" in err) == (3, True)
        code, _, err = call("queue", "--server", f"https://{of_plain}")
        assert (code, f"it speaks no TLS: write http://{of_plain}" in err) == (3, True)
        code, _, err = call("queue", "--server", f"https://{of_secured}")
        assert (code, f"https://{of_secured} is not trusted: " in err, "--ca-file FILE" in err) == (3, True, True)
