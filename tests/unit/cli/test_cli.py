"""The command line as users and scripts meet it: exit codes, sentences, and what is imported."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from socketserver import StreamRequestHandler, TCPServer
from typing import Any

import pytest
import yaml
from msgspec.structs import replace
from typer.testing import CliRunner

from multisched import __version__
from multisched.cli.commands import app
from multisched.config import loading
from multisched.config.options import RunOverrides
from multisched.observe.queue_view import DomainQueue, QueueView, WaitingPod, encode_queue
from multisched.observe.tables import as_table

ROOT = Path(__file__).parents[3]
VIEW = QueueView(
    domains=(
        DomainQueue(domain="job", scheduler_names=("job-scheduler",), is_leading=True, counts={"unschedulable": 2}),
    ),
    pods=(
        WaitingPod(
            domain="job",
            state="unschedulable",
            namespace="default",
            name="big",
            uid="u",
            priority=7,
            attempts=3,
            waiting_s=75.2,
            retry_in_s=4.0,
            plugins=("NodeResourcesFit",),
            message="0/2 nodes are available: 2 Insufficient cpu.\x1b[31m",
        ),
    ),
    left_out=1,
)


def call(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, arguments)
    return result.exit_code, result.stdout, result.stderr


@contextmanager
def answering(status: int, body: bytes, headers: dict[str, str] | None = None) -> Iterator[tuple[str, list[str]]]:
    """A server on loopback with one answer; its URL and the Authorization headers it saw."""
    seen: list[str] = []

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            seen.append(self.headers.get("Authorization", ""))
            self.send_response(status)
            for name, value in (headers or {}).items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            """Quiet."""

    with HTTPServer(("127.0.0.1", 0), Answer) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", seen
        finally:
            server.shutdown()
            thread.join()


def test_version() -> None:
    assert call("version") == (0, f"multisched {__version__}\n", "")
    assert call("--version") == (0, f"multisched {__version__}\n", "")
    assert "--version" in call("--help")[1]


@pytest.mark.parametrize(
    "arguments", [("run", "--confg", "x"), ("no-such",), ("demo", "--nodes", "0"), ("cluster",), ("queue", "-o", "xml")]
)
def test_wrong_command_line_is_a_usage_error(arguments: tuple[str, ...]) -> None:
    assert call(*arguments)[0] == 2


def test_all_configuration_problems_are_reported_and_nothing_starts(tmp_path: Path) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text("apiVersion: multisched.io/v1\nkind: MultischedConfiguration\nleese: {}\nlogging: {level: loud}\n")
    problems = [
        f"{path}:3:1: leese: unknown key (did you mean lease?)",
        f"{path}:4:18: logging.level: 'loud' is not known here; write debug, info, warning or error",
    ]
    for command in (("config", "validate", str(path)), ("demo", "--config", str(path))):
        assert call(*command) == (2, "", "\n".join(problems) + "\n")
    code, out, err = call("run", "--config", str(path))
    assert (code, out, messages(err)) == (2, "", problems)


def test_run_without_credentials_exits_with_no_cluster(tmp_path: Path) -> None:
    code, _, err = call("run", "--kubeconfig", str(tmp_path / "none"))
    assert (code, messages(err)) == (3, [f"no kubeconfig at {tmp_path / 'none'}"])


def messages(err: str) -> list[str]:
    """Of a log in JSON, all of whose lines are errors."""
    lines = [json.loads(line) for line in err.splitlines()]
    assert {line["level"] for line in lines} <= {"error"}
    return [line["message"] for line in lines]


@pytest.mark.parametrize(
    ("server", "port", "told"),
    [
        ("{enabled: false}", "1", "--port conflicts with server.enabled: false; remove one"),
        ("{probePort: 7}", "7", "--port 7 is the same as server.probePort; choose another port"),
    ],
)
def test_invalid_port_is_refused(server: str, port: str, told: str, tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(f"apiVersion: multisched.io/v1\nkind: MultischedConfiguration\nserver: {server}\n")
    code, _, err = call("run", "--config", str(path), "--port", port)
    assert (code, messages(err)) == (2, [told])
    code, _, err = call("run", "--config", str(path), "--port", port, "--log-format", "text")
    assert code == 2
    assert told in err
    assert "{" not in err


def test_dry_run_with_a_binding_extender_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    extender = "{urlPrefix: 'http://127.0.0.1:1/x', bindVerb: bind}"
    path.write_text(
        "apiVersion: multisched.io/v1\nkind: MultischedConfiguration\n"
        f"domains: [{{name: forecast, extenders: [{extender}]}}]\n"
    )
    code, _, err = call("run", "--config", str(path), "--dry-run")
    told = (
        "--dry-run cannot keep the extender http://127.0.0.1:1/x of domain forecast from binding; remove its bindVerb"
    )
    assert (code, messages(err)) == (2, [told])


def test_run_flags_override_the_file() -> None:
    configuration = loading.default()
    over = RunOverrides("debug", "text", 0).over(configuration)
    assert (over.logging.level, over.logging.format, over.server.port) == ("debug", "text", 0)
    assert RunOverrides().over(configuration) == configuration
    probed = replace(configuration, server=replace(configuration.server, probe_port=10261))
    assert RunOverrides(port=0).over(probed).server.probe_port == 0, "any free one, as of the server"
    assert RunOverrides(port=10270).over(probed).server.probe_port == 10261
    assert not RunOverrides(is_dry_run=True).over(configuration).lease.enabled


def test_validate_accepts_a_valid_file() -> None:
    code, out, _ = call("config", "validate", str(ROOT / "config/default.yaml"))
    assert code == 0
    assert out.endswith("valid; domains: forecast (forecast-scheduler), gpu (gpu-scheduler), job (job-scheduler)\n")


def test_validate_notes_arguments_without_effect(tmp_path: Path) -> None:
    path = tmp_path / "good.yaml"
    path.write_text(
        "apiVersion: multisched.io/v1\nkind: MultischedConfiguration\ndomains:\n- name: job\n  profile:\n    plugins:\n"
        "      enabled: [{name: DefaultPreemption, args: {minCandidateNodesPercentage: 50}}, {name: NodeName}]\n"
    )
    code, out, _ = call("config", "validate", str(path))
    assert (code, out.splitlines()) == (
        0,
        [
            (
                f"{path}: job: DefaultPreemption: minCandidateNodesPercentage: no effect: every candidate node is examined,"
                " as upstream does at 100 percent"
            ),
            f"{path}: valid; domains: job (job-scheduler)",
        ],
    )


def test_validate_notes_missing_tls_files(tmp_path: Path) -> None:
    path, certificate = tmp_path / "good.yaml", tmp_path / "tls.crt"
    certificate.touch()
    tls = f"{{certFile: {certificate}, keyFile: /nowhere/tls.key}}"
    path.write_text(f"apiVersion: multisched.io/v1\nkind: MultischedConfiguration\nserver: {{tls: {tls}}}\n")
    code, out, _ = call("config", "validate", str(path))
    assert code == 0
    assert out.splitlines()[0] == (
        f"{path}: server.tls.keyFile: the file /nowhere/tls.key does not exist on this machine;"
        " the program does not start without it"
    )
    assert "certFile" not in out


def test_validate_notes_an_unwritable_profiles_file(tmp_path: Path) -> None:
    path = tmp_path / "good.yaml"
    args = (
        "history: {sources: [{type: csv, files: [/use.csv]}], dimensions: [{name: cpu, capacity: allocatable}]},"
        " profilesFile: FILE"
    )
    head = "apiVersion: multisched.io/v1\nkind: MultischedConfiguration\ndomains:\n- name: forecast\n  profile:\n    plugins:\n"
    text = f"{head}      enabled: [{{name: PeakForecast, args: {{{args}}}}}]\n"
    path.write_text(text.replace("FILE", "/nowhere/profiles"))
    code, out, _ = call("config", "validate", str(path))
    assert (code, out.splitlines()[0]) == (
        0,
        (
            f"{path}: forecast: PeakForecast: profilesFile: /nowhere/profiles: there is no folder /nowhere on this machine;"
            " without it each start learns again, and scores by requests until then"
        ),
    )
    path.write_text(text.replace("FILE", str(tmp_path / "profiles")))
    assert len(call("config", "validate", str(path))[1].splitlines()) == 1
    path.write_text(text.replace("FILE", str(tmp_path)))
    code, _, err = call("config", "validate", str(path))
    assert (code, f"args.profilesFile: {tmp_path} is a folder; name a file in it" in err) == (2, True)


def test_default_and_schema_equal_the_repository_files() -> None:
    assert call("config", "default")[1] == (ROOT / "config/default.yaml").read_text()
    assert call("config", "schema")[1] == (ROOT / "config/schema.json").read_text()


def test_plugins_are_listed_with_points_and_profiles() -> None:
    plugins = {plugin["name"]: plugin for plugin in json.loads(call("plugins", "list", "-o", "json")[1])["plugins"]}
    assert plugins["NodeResourcesFit"]["extensionPoints"] == ["PreFilter", "Filter", "Score"]
    assert plugins["TaintToleration"]["enabledIn"] == {"forecast": 3, "gpu": 3, "job": 3}
    assert plugins["QOSSort"]["extensionPoints"] == ["QueueSort"]
    assert plugins["PrioritySort"]["enabledIn"] == {}
    assert yaml.safe_load(call("plugins", "list", "-o", "yaml")[1])["plugins"] == list(plugins.values())
    assert call("plugins", "list")[1].startswith("NAME ")
    assert plugins["PeakForecast"]["extensionPoints"] == ["Score", "PostBind"]
    assert plugins["VolumeBinding"]["extensionPoints"] == ["PreFilter", "Filter", "PreBind"]


class Mine:
    """A plugin of somebody's own."""

    name = "Mine"

    def permit(self, cycle: object, pod: object, node: str) -> None: ...


def test_plugins_of_a_configuration_are_listed_with_points_from_their_args(tmp_path: Path) -> None:
    path = tmp_path / "own.yaml"
    path.write_text(
        "apiVersion: multisched.io/v1\nkind: MultischedConfiguration\ndomains:\n- name: web\n  profile:\n    plugins:\n"
        f"      enabled: [{{name: PeakForecast, args: {{mode: both}}, weight: 5}}, {{name: '{__name__}:Mine'}}]\n"
    )
    listed = json.loads(call("plugins", "list", "--config", str(path), "-o", "json")[1])["plugins"]
    plugins = {plugin["name"]: plugin for plugin in listed}
    assert plugins["PeakForecast"]["extensionPoints"] == ["PreFilter", "Filter", "Score", "PostBind"]
    assert plugins["PeakForecast"]["enabledIn"] == {"web": 5}
    assert plugins["GpuShare"]["enabledIn"] == {}
    assert plugins[f"{__name__}:Mine"] == {
        "name": f"{__name__}:Mine",
        "source": "configuration",
        "extensionPoints": ["Permit"],
        "enabledIn": {"web": 1},
    }
    assert call("plugins", "list", "--config", str(tmp_path / "none"))[0] == 2


def test_queue_table_has_no_control_characters() -> None:
    with answering(200, encode_queue(VIEW)) as (url, _):
        code, out, _ = call("queue", "--server", url)
        assert code == 0
        assert [line.split() for line in out.splitlines()[:2]] == [
            ["DOMAIN", "SCHEDULER", "NAMES", "LEADING", "BINDS", "CYCLES",
             "ACTIVE", "BACKOFF", "UNSCHEDULABLE", "GATED", "GANG", "QUARANTINED", "REFUSED", "PERMIT", "BINDING"],
            ["job", "job-scheduler", "yes", "0/0", "0", "0", "0", "2", "0", "0", "0", "0", "0", "0"],
        ]  # fmt: skip
        assert "75s" in out
        assert "0/2 nodes are available: 2 Insufficient cpu." in out
        assert "\x1b" not in out
        assert out.endswith("… and 1 more (--limit shows up to 5000)\n")
        assert "PRIORITY" in call("queue", "--server", url, "-o", "wide")[1]


@pytest.mark.parametrize("output", ["json", "yaml"])
def test_queue_is_printed_as_json(output: str) -> None:
    with answering(200, encode_queue(VIEW)) as (url, _):
        document = yaml.safe_load(call("queue", "--server", url, "-o", output)[1])
    assert document["pods"][0]["plugins"] == ["NodeResourcesFit"]
    assert document["domains"][0]["counts"] == {"unschedulable": 2}


def test_unreachable_server_exits_with_no_cluster() -> None:
    code, out, err = call("queue", "--server", "http://127.0.0.1:1")
    assert (code, out) == (3, "")
    assert err.startswith("multisched: no multisched responds at http://127.0.0.1:1: ")


@pytest.mark.parametrize(
    ("status", "body", "told"),
    [
        (403, b"not allowed", "returned 403: not allowed"),
        (200, b"<html>", "is not a multisched"),
        (302, b"", "returned 302"),
    ],
)
def test_unexpected_response_exits_with_a_problem(status: int, body: bytes, told: str) -> None:
    with answering(status, body, {"Location": "http://127.0.0.1:1/"}) as (url, _):
        code, _, err = call("queue", "--server", url)
    assert code == 1
    assert told in err


def test_token_is_read_from_a_file_or_kubeconfig(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("from-file\n")
    kubeconfig = tmp_path / "kubeconfig"
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "c",
        "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}],
        "users": [{"name": "u", "user": {"token": "from-kubeconfig"}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
    }
    kubeconfig.write_text(yaml.safe_dump(document))
    with answering(200, encode_queue(VIEW)) as (url, seen):
        assert call("queue", "--server", url, "--token-file", str(token))[0] == 0
        assert call("queue", "--server", url, "--kubeconfig", str(kubeconfig))[0] == 0
    assert seen == ["Bearer from-file", "Bearer from-kubeconfig"]


@pytest.mark.parametrize(
    "server", ["http://192.0.2.1:10260", "http://multisched.example", "http://127.0.0.1@evil.example:1", "http://10.1"]
)
def test_token_is_not_sent_to_another_machine_over_http(server: str, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("secret")
    for source in ("--token-file", "--kubeconfig"):
        code, _, err = call("queue", "--server", server, source, str(token))
        assert code == 2
        assert "write https://HOST:PORT, or forward the port" in err
        assert "secret" not in err


@pytest.mark.parametrize(("content", "told"), [("", "is empty"), ("no PEM", "has no certificate")])
def test_ca_file_without_certificates_is_refused(content: str, told: str, tmp_path: Path) -> None:
    authorities = tmp_path / "ca.pem"
    authorities.write_text(content)
    code, _, err = call("queue", "--server", "https://127.0.0.1:1", "--ca-file", str(authorities))
    assert (code, f"{authorities} {told}" in err) == (2, True)


@pytest.mark.parametrize("has_kubeconfig", [True, False])
def test_unreachable_default_server_suggests_the_clusters_of_the_kubeconfig(
    has_kubeconfig: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("multisched.cli.query_commands.DEFAULT_SERVER", "http://127.0.0.1:9")
    monkeypatch.delenv("MULTISCHED_SERVER", raising=False)
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    if has_kubeconfig:
        (tmp_path / ".kube").mkdir()
        (tmp_path / ".kube" / "config").touch()
    code, _, err = call("queue")
    assert (code, "no multisched responds at http://127.0.0.1:9: " in err) == (3, True)
    assert ("or reach one in a cluster with --context NAME" in err) is has_kubeconfig
    assert "--context" not in call("queue", "--server", "http://127.0.0.1:9")[2]


@pytest.mark.parametrize(
    "command",
    [("queue",), ("explain", "pod", "p"), ("forecast", "nodes"), ("repair", "plan"), ("verify",), ("config", "diff")],
)
def test_context_option_may_precede_the_command(
    command: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MULTISCHED_SERVER", raising=False)
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(yaml.safe_dump({"kind": "Config", "clusters": [], "users": [], "contexts": []}))
    given = ("--kubeconfig", str(kubeconfig))
    for arguments in (("--context", "far", *command, *given), (*command, *given, "--context", "far")):
        code, out, err = call(*arguments)
        assert (code, out, "has no context far" in err) == (3, "", True), err
    code, _, err = call("--context", "far", *command, *given, "--context", "near")
    assert (code, "has no context near" in err) == (3, True), err


def test_server_option_overrides_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(yaml.safe_dump({"kind": "Config", "clusters": [], "users": [], "contexts": []}))
    with answering(200, encode_queue(VIEW)) as (url, _):
        monkeypatch.setenv("MULTISCHED_SERVER", url)
        assert call("queue")[0] == 0
        code, _, err = call("queue", "--context", "a-context-that-nobody-has")
        assert (code, "kubeconfig" in err) == (3, True), err
        code, _, err = call("queue", "--kubeconfig", str(kubeconfig))
        assert (code, str(kubeconfig) in err) == (3, True), err
        code, _, err = call("queue", "--server", "http://127.0.0.1:1")
        assert (code, "http://127.0.0.1:1" in err) == (3, True), err


def test_malformed_server_is_named_with_its_source(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MULTISCHED_SERVER", "foo")
    wanted = "write http://HOST:PORT or https://HOST:PORT"
    assert call("queue") == (2, "", f"multisched: MULTISCHED_SERVER=foo: {wanted}\n")
    assert call("queue", "--server", "bar") == (2, "", f"multisched: --server bar: {wanted}\n")


@pytest.mark.parametrize(
    ("command", "given", "hint"),
    [
        (("queue",), "jsn", " (did you mean json?)."),
        (("quota", "tree"), "wid", " (did you mean wide?)."),
        (("config", "diff"), "x", "'yaml'."),
    ],
)
def test_misspelt_output_format_gets_a_suggestion(command: tuple[str, ...], given: str, hint: str) -> None:
    code, out, err = call(*command, "-o", given)
    plain = " ".join(err.replace("│", "").split())
    assert (code, out) == (2, "")
    assert f"Invalid value for '--output' / '-o': '{given}' is not one of" in plain
    assert hint in plain


@pytest.mark.parametrize("command", ["version", "cluster"])
def test_context_is_refused_by_commands_without_a_cluster(command: str) -> None:
    code, out, err = call("--context", "far", command)
    assert (code, out, err) == (2, "", f"multisched: --context: {command} uses no cluster; leave it out\n")


@pytest.mark.parametrize("server", ["localhost", "127.0.0.1", "127.8.8.8", "[::1]"])
def test_token_may_be_sent_to_this_machine_over_http(server: str, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("secret")
    code, _, err = call("queue", "--server", f"http://{server}:1", "--token-file", str(token))
    assert (code, "no multisched responds" in err) == (3, True)


@pytest.mark.parametrize(
    "server",
    [
        "",
        "foo",
        "file:///etc/passwd",
        "http://",
        "http://[::1",
        "http://h:abc",
        "http://h:1 0",
        "http://h:99999",
        "http://h\r\nX: y",
    ],
)
def test_only_http_urls_are_accepted_as_server(server: str) -> None:
    code, out, err = call("queue", "--server", server)
    assert (code, out) == (2, "")
    assert err.endswith(": write http://HOST:PORT or https://HOST:PORT\n")


@pytest.mark.parametrize("content", [b"", b" \n", b"\xaa\xbb", b"two words", b"a\nb", b"[" * 100_000])
def test_file_without_a_token_is_refused(content: bytes, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_bytes(content)
    code, out, err = call("queue", "--server", "http://127.0.0.1:1", "--token-file", str(token))
    assert (code, out) == (2, "")
    assert err.startswith(f"multisched: {token} contains no token: ")


class MailServer(TCPServer):
    """Answers each connection as SMTP does."""

    def process_request(self, request: Any, client_address: Any) -> None:
        request.recv(1 << 16)
        request.sendall(b"220 mail.example ESMTP\r\n")
        self.shutdown_request(request)


def test_non_http_server_is_not_multisched() -> None:
    with MailServer(("127.0.0.1", 0), StreamRequestHandler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            url = f"http://127.0.0.1:{server.server_address[1]}"
            code, out, err = call("queue", "--server", url)
        finally:
            server.shutdown()
            thread.join()
    assert (code, out) == (3, "")
    assert err.startswith(f"multisched: no multisched responds at {url}: ")


def loaded_after(statement: str) -> set[str]:
    """The modules a fresh interpreter has loaded after a statement."""
    code = f"import sys\n{statement}\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_version_and_help_import_no_heavy_modules() -> None:
    loaded = loaded_after("import multisched.cli.commands")
    assert not loaded & {"numpy", "pydantic", "aiohttp", "kubernetes_asyncio", "prometheus_client", "yaml", "anyio"}


def test_commands_other_than_run_do_not_import_ssl() -> None:
    assert "ssl" not in loaded_after("import multisched.cli.main")


def test_run_imports_neither_the_embedded_cluster_nor_the_judge() -> None:
    loaded = loaded_after("import multisched.app")
    assert not {name for name in loaded if name.startswith(("multisched.cluster", "multisched.verify"))}


def test_columns_have_the_width_of_their_widest_cell() -> None:
    assert as_table(("name", "n"), [("a", 1), ("longer", 22)]) == "NAME     N\na        1\nlonger   22"
    assert as_table(("why",), [("x" * 200,)]).splitlines()[1] == "x" * 200
    assert as_table(("why",), [("",)]).splitlines()[1] == "-"


KUBE = """\
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
percentageOfNodesToScore: 30
"""


def test_converted_configuration_is_valid_and_names_differences(tmp_path: Path) -> None:
    source, target = tmp_path / "kube.yaml", tmp_path / "ours.yaml"
    source.write_text(KUBE)

    code, printed, told = call("config", "convert", str(source))
    assert (code, yaml.safe_load(printed)["kind"]) == (0, "MultischedConfiguration")
    assert f"{source}:3:1: warning: percentageOfNodesToScore: 30: all nodes are evaluated, as with 100" in told

    assert call("config", "convert", str(source), "-o", str(target))[:2] == (0, "")
    assert target.read_text() == printed
    code, told, _ = call("config", "validate", str(target))
    assert (code, told.splitlines()) == (
        0,
        [
            f"{target}: default-scheduler: {line}"
            for line in (
                "kube-scheduler must stop serving default-scheduler before this configuration runs",
                "no ElasticQuota in the profile: quotas do not limit its pods",
                "no GangScheduling in the profile: PodGroups and labels of gangs are ignored, and members start one by one",
            )
        ]
        + [f"{target}: valid; domains: default-scheduler (default-scheduler)"],
    )


def test_convert_reports_as_json_and_fails_on_losses_only_with_strict(tmp_path: Path) -> None:
    source = tmp_path / "kube.yaml"
    source.write_text(KUBE)
    code, printed, _ = call("config", "convert", str(source), "-o", "json")
    document = json.loads(printed)
    assert code == 0
    assert document["configuration"]["domains"][0]["schedulerNames"] == ["default-scheduler"]
    assert [found for found in document["findings"] if found["severity"] == "warning"] == [
        {
            "severity": "warning",
            "path": "percentageOfNodesToScore",
            "line": 3,
            "column": 1,
            "message": "30: all nodes are evaluated, as with 100",
        }
    ]
    source.write_text(KUBE.replace("30", "100"))
    assert call("config", "convert", str(source), "--strict")[0] == 0


@pytest.mark.parametrize("form", ["yaml", "json", "FILE"])
def test_strict_conversion_writes_all_or_nothing(form: str, tmp_path: Path) -> None:
    source, target = tmp_path / "kube.yaml", tmp_path / "ours.yaml"
    source.write_text(KUBE)
    target.write_text("before")
    code, printed, told = call("config", "convert", str(source), "--strict", "-o", form.replace("FILE", str(target)))
    assert (code, printed, target.read_text()) == (1, "", "before")
    assert "warning: percentageOfNodesToScore" in told
    assert "multisched: nothing is written: the lines above list what is not converted" in told


def test_convert_refuses_unreadable_input_and_keeps_its_source(tmp_path: Path) -> None:
    source = tmp_path / "kube.yaml"
    source.write_text(KUBE.replace("30", "300"))
    told = f"{source}:3:27: percentageOfNodesToScore: must be less than or equal to 100, got 300\n"
    assert call("config", "convert", str(source)) == (2, "", told)
    assert call("config", "convert", str(tmp_path / "none"))[0] == 2

    source.write_text(KUBE)
    code, _, told = call("config", "convert", str(source), "-o", str(source))
    assert (code, source.read_text()) == (2, KUBE)
    assert f"multisched: {source} is the file to convert; name another one" in told
    code, _, told = call("config", "convert", str(source), "-o", str(tmp_path / "no" / "folder"))
    assert code == 2
    assert "cannot be written: No such file or directory" in told
