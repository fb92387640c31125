"""The real control plane on loopback: etcd, kube-apiserver, kube-controller-manager and, when asked, kube-scheduler.

`async with ControlPlane.start(folder) as plane` owns the processes, their ports and everything in `folder` (data,
certificates, kubeconfigs, one log per program) until the block ends; then all of them are killed: the data is thrown
away with the folder, so nothing is gained by waiting for a graceful end. Tests and benchmarks only; the binaries come
from `make controlplane`.

It differs from a production control plane in five ways, each because there are no machines behind it: no node
lifecycle, no ServiceAccount admission (no pod mounts a token; TokenRequest works), no condition taints on new nodes,
no endpoint of its own in the cluster, and an etcd that does not wait for the disk. With `gangs` it serves Kubernetes'
own groups of pods, and kube-scheduler reads them; without a controller manager they get no finalizer, which nobody
would remove.
"""

from __future__ import annotations

import base64
import json
import os
import secrets
import socket
import ssl
import subprocess
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import aiohttp
import anyio

from tests.real.certificates import write_certificates
from tests.real.program import Program

BUILD_SCRIPT: Final = Path(__file__).parent / "controlplane" / "build.sh"
LOOPBACK: Final = "127.0.0.1"
READY_TIMEOUT_S: Final = 90
POLL_INTERVAL_S: Final = 0.1
PROBE_TIMEOUT_S: Final = 5
STORE_GRACE_S: Final = 20.0
KUBECTL_TIMEOUT_S: Final = 60
REQUESTS_INFLIGHT: Final = 4_000
MUTATIONS_INFLIGHT: Final = 2_000
DELETE_WORKERS: Final = 8
CONTROLLER_QPS: Final = 1_000
ADMIN: Final = "admin"
UNPRIVILEGED: Final = "nobody"

GANG_GATES: Final = "--feature-gates=GenericWorkload=true,GangScheduling=true"
"""Of API server, controller manager and kube-scheduler: alpha in 1.36, and off as shipped."""
GANG_API: Final = "scheduling.k8s.io/v1alpha2"

# No node lifecycle: nothing taints or evicts when the kubelets are not there. The rest is what schedulers and their
# users touch: workloads, disruption budgets, volumes, namespaces, ownership, accounts.
CONTROLLERS: Final = (
    "clusterrole-aggregation-controller",
    "cronjob-controller",
    "daemonset-controller",
    "deployment-controller",
    "disruption-controller",
    "ephemeral-volume-controller",
    "garbage-collector-controller",
    "job-controller",
    "namespace-controller",
    "persistentvolume-binder-controller",
    "persistentvolume-protection-controller",
    "persistentvolumeclaim-protection-controller",
    "pod-garbage-collector-controller",
    "replicaset-controller",
    "serviceaccount-controller",
    "statefulset-controller",
    "ttl-after-finished-controller",
)

AUDIT_LOG_MAX_MB: Final = 10_000
"""The API server begins another file after this much, by default after 100 MB; only the last one is read."""
# Requests that were begun and never ended left no trace of their outcome: only ends are written.
AUDIT_POLICY: Final = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [
        {"level": "Request", "resources": [{"group": "", "resources": ["pods/binding"]}]},
        {"level": "Metadata", "userGroups": ["system:serviceaccounts"]},
        {"level": "None"},
    ],
}


class NotBuiltError(RuntimeError):
    """The binaries are not in the cache folder."""


@dataclass(frozen=True, slots=True)
class Ports:
    """Free when they were picked; picked together, so that they differ."""

    etcd: int
    etcd_peer: int
    api_server: int


def binaries() -> Path:
    """The folder that `make controlplane` fills; raises NotBuiltError when it did not run."""
    folder = Path(subprocess.run([BUILD_SCRIPT, "--where"], check=True, capture_output=True, text=True).stdout.strip())
    if not (folder / ".stamp").exists():
        raise NotBuiltError(f"no control plane in {folder}: run `make controlplane` (needs Go, takes minutes, once)")
    return folder


class ControlPlane:
    """A running control plane. Only `start` makes one; all paths lie in its folder."""

    def __init__(self, folder: Path, *, audit: bool, gangs: bool, controller_manager: bool) -> None:
        self.folder = folder
        self._gangs = gangs
        self._controller_manager = controller_manager
        self.audit_log = folder / "audit.log" if audit else None
        self.binaries = binaries()
        self.ports = _free_ports()
        self.url = f"https://{LOOPBACK}:{self.ports.api_server}"
        self.etcd_url = f"http://{LOOPBACK}:{self.ports.etcd}"
        self.certificates = write_certificates(folder)
        self.tls = ssl.create_default_context(cafile=str(self.certificates.ca))
        self.token = secrets.token_hex(16)
        self.unprivileged_token = secrets.token_hex(16)
        self.kubeconfig = self.write_kubeconfig(ADMIN, self.token)
        self._programs: dict[str, Program] = {}

    @classmethod
    @asynccontextmanager
    async def start(
        cls,
        folder: Path,
        *,
        controller_manager: bool = True,
        scheduler: bool = False,
        audit: bool = False,
        gangs: bool = False,
    ) -> AsyncIterator[ControlPlane]:
        """Ready means: /readyz says so, and namespace `default` exists. Raises ProgramEndedError or TimeoutError.

        With `audit` the API server writes what ServiceAccounts ask, and every binding with its body, to `audit_log`.
        With `gangs` all programs have the gates of `scheduling.k8s.io/v1alpha2` on.
        """
        await anyio.Path(folder).mkdir(parents=True, exist_ok=True)
        plane = cls(folder, audit=audit, gangs=gangs, controller_manager=controller_manager)
        try:
            await plane._start_etcd()
            await plane.restart_api_server()
            if controller_manager:
                await plane._start("kube-controller-manager", plane._controller_manager_flags())
            if scheduler:
                await plane.start_scheduler()
            yield plane
        finally:
            with anyio.CancelScope(shield=True):
                for program in reversed(list(plane._programs.values())):
                    await program.kill()

    @property
    def api_server(self) -> Program:
        return self._programs["kube-apiserver"]

    @property
    def etcd(self) -> Program:
        return self._programs["etcd"]

    def write_kubeconfig(self, user: str, token: str, *, port: int | None = None) -> Path:
        """A kubeconfig for `token`, with the CA inside, readable by its owner only. `port`: of a proxy on loopback."""
        server = self.url if port is None else f"https://{LOOPBACK}:{port}"
        authority = base64.b64encode(self.certificates.ca.read_bytes()).decode()
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [
                {"name": "real", "cluster": {"server": server, "certificate-authority-data": authority}},
            ],
            "users": [{"name": user, "user": {"token": token}}],
            "contexts": [{"name": "real", "context": {"cluster": "real", "user": user}}],
            "current-context": "real",
        }
        path = self.folder / f"{user}.kubeconfig"
        path.touch(mode=0o600)
        path.write_text(json.dumps(document, indent=2))
        return path

    async def service_account_kubeconfig(
        self, namespace: str, name: str, holder: str = "", *, port: int | None = None
    ) -> Path:
        """A kubeconfig with a fresh token of an existing ServiceAccount (TokenRequest): its RBAC and nothing else.

        Two processes that run as one account name themselves as `holder`, so that each has a file of its own.
        """
        token = await self.kubectl("create", "token", name, "--namespace", namespace, "--duration", "2h")
        return self.write_kubeconfig(".".join(filter(None, (namespace, name, holder))), token.strip(), port=port)

    async def kubectl(self, *arguments: str, kubeconfig: Path | None = None, document: str | None = None) -> str:
        """What kubectl 1.36.3 printed; `document` is its stdin (`-f -`). Raises CalledProcessError when it refused."""
        command = [str(self.binaries / "kubectl"), "--kubeconfig", str(kubeconfig or self.kubeconfig), *arguments]
        with anyio.fail_after(KUBECTL_TIMEOUT_S):
            answer = await anyio.run_process(
                command, input=(document or "").encode(), env=self._environment(), check=False
            )
        if answer.returncode != 0:
            raise subprocess.CalledProcessError(
                answer.returncode, command, answer.stdout.decode(), answer.stderr.decode()
            )
        return answer.stdout.decode()

    async def apply_definitions(self, path: Path) -> None:
        """Applies CustomResourceDefinitions, and waits until kubectl can read their objects: neither apply nor Established is enough.

        `path`: a file or a folder. Raises CalledProcessError or TimeoutError.
        """
        applied = await self.kubectl("apply", "--server-side", "-o", "name", "-f", str(path))
        await self.kubectl("wait", *applied.split(), "--for=condition=Established", f"--timeout={READY_TIMEOUT_S}s")
        kinds = ",".join(name.partition("/")[2] for name in applied.split())
        with anyio.fail_after(READY_TIMEOUT_S):
            while True:
                try:
                    await self.kubectl("get", kinds, "--all-namespaces")
                except subprocess.CalledProcessError:
                    await anyio.sleep(POLL_INTERVAL_S)
                else:
                    return

    async def kill_api_server(self) -> None:
        """SIGKILL, as a crash: connections are cut, etcd keeps what was committed."""
        await self.api_server.kill()

    async def stop_store(self) -> None:
        """Ends API server and etcd; what etcd keeps lies in `store` then, whole."""
        await self.kill_api_server()
        await self.etcd.stop(STORE_GRACE_S)

    async def restart_store(self) -> None:
        """Starts both on what lies in `store`, and waits until they are ready."""
        await self._start_etcd()
        await self.restart_api_server()

    @property
    def store(self) -> Path:
        return self.folder / "etcd"

    async def restart_api_server(self) -> None:
        """Starts it on the same port and data (it must not be running) and waits until it is ready."""
        await self._start("kube-apiserver", self._api_server_flags())
        headers = {"Authorization": f"Bearer {self.token}"}
        for path in ("/readyz", "/api/v1/namespaces/default"):
            await _wait_for(self.url + path, self.api_server, headers, self.tls)

    async def start_scheduler(self, *, qps: int = 5_000, burst: int = 5_000) -> Program:
        """kube-scheduler with its default profile, no leader election, and client limits out of its way."""
        config = {
            "apiVersion": "kubescheduler.config.k8s.io/v1",
            "kind": "KubeSchedulerConfiguration",
            "clientConnection": {"kubeconfig": str(self.kubeconfig), "qps": qps, "burst": burst},
            "leaderElection": {"leaderElect": False},
        }
        path = self.folder / "kube-scheduler.json"
        path.write_text(json.dumps(config))
        return await self._start("kube-scheduler", [f"--config={path}", "--secure-port=0", *self._gates()])

    async def start_program(
        self, name: str, command: Sequence[str], variables: Mapping[str, str] | None = None
    ) -> Program:
        """Any program that lives on this cluster: its log is in the folder, and it ends with the control plane."""
        environment = {**self._environment(), **(variables or {})}
        program = await Program.start(name, command, self.folder / f"{name}.log", environment)
        self._programs[name] = program
        return program

    async def _start(self, name: str, flags: Sequence[str]) -> Program:
        return await self.start_program(name, [str(self.binaries / name), *flags])

    def _environment(self) -> Mapping[str, str]:
        """No proxy and no home of this user: kubectl caches discovery in the folder, and loopback stays loopback."""
        kept = {name: value for name, value in os.environ.items() if "proxy" not in name.lower()}
        return {**kept, "HOME": str(self.folder)}

    async def _start_etcd(self) -> None:
        peer = f"http://{LOOPBACK}:{self.ports.etcd_peer}"
        flags = [
            "--name=etcd",
            f"--data-dir={self.store}",
            f"--listen-client-urls={self.etcd_url}",
            f"--advertise-client-urls={self.etcd_url}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=etcd={peer}",
            "--quota-backend-bytes=8589934592",
            "--unsafe-no-fsync",
        ]
        await self._start("etcd", flags)
        await _wait_for(f"{self.etcd_url}/health", self.etcd, {}, None)

    def _api_server_flags(self) -> list[str]:
        tokens = self.folder / "tokens.csv"
        tokens.touch(mode=0o600)
        tokens.write_text(
            f'{self.token},{ADMIN},{ADMIN},"system:masters"\n{self.unprivileged_token},{UNPRIVILEGED},{UNPRIVILEGED}\n'
        )
        files = self.certificates
        return [
            f"--etcd-servers={self.etcd_url}",
            f"--bind-address={LOOPBACK}",
            f"--advertise-address={LOOPBACK}",
            f"--secure-port={self.ports.api_server}",
            f"--cert-dir={self.folder}",
            f"--tls-cert-file={files.serving}",
            f"--tls-private-key-file={files.serving_key}",
            f"--token-auth-file={tokens}",
            "--authorization-mode=RBAC",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={files.service_account_key}",
            f"--service-account-signing-key-file={files.service_account_key}",
            "--service-cluster-ip-range=10.96.0.0/16",
            f"--disable-admission-plugins={','.join(self._without_admission())}",
            "--endpoint-reconciler-type=none",
            f"--max-requests-inflight={REQUESTS_INFLIGHT}",
            f"--max-mutating-requests-inflight={MUTATIONS_INFLIGHT}",
            f"--delete-collection-workers={DELETE_WORKERS}",
            *self._audit_flags(),
            *([f"--runtime-config={GANG_API}=true"] if self._gangs else []),
            *self._gates(),
        ]

    def _gates(self) -> list[str]:
        return [GANG_GATES] if self._gangs else []

    def _without_admission(self) -> list[str]:
        # The finalizer of a PodGroup goes with the controller manager alone.
        finalizes = [] if self._controller_manager else ["PodGroupProtection"]
        return ["ServiceAccount", "TaintNodesByCondition", *finalizes]

    def _audit_flags(self) -> list[str]:
        if self.audit_log is None:
            return []
        policy = self.folder / "audit-policy.json"
        policy.write_text(json.dumps(AUDIT_POLICY))
        return [
            f"--audit-policy-file={policy}",
            f"--audit-log-path={self.audit_log}",
            f"--audit-log-maxsize={AUDIT_LOG_MAX_MB}",
        ]

    def _controller_manager_flags(self) -> list[str]:
        controllers = [*CONTROLLERS, *(["podgroup-protection-controller"] if self._gangs else [])]
        return [
            f"--kubeconfig={self.kubeconfig}",
            f"--controllers={','.join(controllers)}",
            "--leader-elect=false",
            "--secure-port=0",
            f"--kube-api-qps={CONTROLLER_QPS}",
            f"--kube-api-burst={2 * CONTROLLER_QPS}",
            *self._gates(),
        ]


def _free_ports() -> Ports:
    with ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(3)]
        for each in sockets:
            each.bind((LOOPBACK, 0))
        return Ports(*(each.getsockname()[1] for each in sockets))


async def _wait_for(url: str, program: Program, headers: Mapping[str, str], tls: ssl.SSLContext | None) -> None:
    """Returns at the first 200; raises ProgramEndedError when the program is gone, TimeoutError after the bound."""
    timeout = aiohttp.ClientTimeout(total=PROBE_TIMEOUT_S)
    connector = aiohttp.TCPConnector(ssl=tls if tls is not None else True, force_close=True)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout, headers=headers) as session:
        for _ in range(round(READY_TIMEOUT_S / POLL_INTERVAL_S)):
            program.check_running()
            if await _answers(session, url):
                return
            await anyio.sleep(POLL_INTERVAL_S)
    raise TimeoutError(f"{program.name} did not answer {url} within {READY_TIMEOUT_S} s; see {program.log}")


async def _answers(session: aiohttp.ClientSession, url: str) -> bool:
    try:
        async with session.get(url) as answer:
            return answer.status == 200
    except (aiohttp.ClientError, TimeoutError):
        return False
