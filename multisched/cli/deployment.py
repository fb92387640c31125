"""A multisched that runs in a cluster: found by its Leases, reached by port-forwards through the API server.

A forwarded port keeps the caller's token; the API server's proxy for Services would remove it. Each connection has its
own thread, which ends with it. Only kubeconfigs are read; kubectl is not needed.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Final, TypeVar
from urllib.parse import urlsplit

import anyio
import msgspec

from multisched.cli.http_call import PORTS, NoAnswerError
from multisched.cli.options import QueryError
from multisched.client.auth import Credentials, KubeconfigSource, import_vendor
from multisched.client.errors import CredentialsError, parse_status
from multisched.client.kubeconfig_files import default_kubeconfig
from multisched.client.lease_record import LeaseRecord, leader_of, leases_path
from multisched.client.port_forward import OPEN_TIMEOUT_S, PortForward, PortForwardError
from multisched.client.transport import HttpTransport, open_transport
from multisched.config.options import ExitCode
from multisched.framework.leading import Leader
from multisched.model.wire import UNREADABLE, TransportError

T = TypeVar("T")

LEASES_MAX: Final = 500
READ_TIMEOUT_S: Final = 15.0
IDENTITY_END: Final = 9
"""Length of what a process appends to the name of its pod: `-` and eight digits (`app.default_identity`)."""
OURS: Final = "multisched.io/"
"""Prefix of the annotation keys that a multisched writes into its Leases."""
RIGHTS: Final = "docs/operators.md, Asking it from outside, has the Role that callers need"


class _Leases(msgspec.Struct):
    items: tuple[LeaseRecord, ...] = ()


class Deployment:
    """A multisched in one namespace, by one kubeconfig."""

    def __init__(self, kubeconfig: Path | None, context: str | None, namespace: str) -> None:
        """`kubeconfig` None: the user's own."""
        vendor = import_vendor()
        self.kubeconfig = Path(default_kubeconfig(os.environ)) if kubeconfig is None else kubeconfig
        self.namespace = namespace
        self._source = KubeconfigSource(vendor, self.kubeconfig, context)
        """Shared by all connections, so that an exec plugin runs only once."""

    def first_leader(self) -> Leader:
        """Returns a replica that leads a domain; it knows the leaders of the other domains. Raises QueryError."""
        ours = self._run(self._leases)
        if not ours:
            raise QueryError(
                f"no multisched has a Lease in namespace {self.namespace}: give another --namespace,"
                " or --server for one that runs elsewhere",
                ExitCode.NO_CLUSTER,
            )
        leaders = [leader_of(lease) for lease in ours if lease.spec.holder]
        if not leaders:
            names = ", ".join(lease.metadata.name for lease in ours)
            raise QueryError(
                f"no replica holds {names} in namespace {self.namespace}, so none leads; check its pods"
                f" (kubectl -n {self.namespace} get pods), or retry in a moment",
                ExitCode.PROBLEM,
            )
        reachable = [leader for leader in leaders if leader.address]
        if not reachable:
            raise QueryError(
                f"{leaders[0].identity} leads, but its Lease has no address: it serves no HTTP,"
                " or is of an older version; give its address with --server",
                ExitCode.NO_CLUSTER,
            )
        return reachable[0]

    def tunnel_to(self, leader: Leader) -> Tunnel:
        """Returns a tunnel to the port in the leader's address."""
        parts = urlsplit(leader.address)
        return Tunnel(self, leader, parts.port or PORTS[parts.scheme])

    async def connected(self, work: Callable[[HttpTransport], Awaitable[T]]) -> T:
        """Runs `work` with a connected transport, on any loop. Raises CredentialsError."""
        credentials = await Credentials.load(self._source)
        async with open_transport(credentials, connections_max=2) as transport:
            return await work(transport)

    def _run(self, work: Callable[[HttpTransport], Awaitable[T]]) -> T:
        try:
            return anyio.run(self.connected, work)
        except (CredentialsError, TransportError) as error:
            raise QueryError(str(error), ExitCode.NO_CLUSTER) from error

    async def _leases(self, transport: HttpTransport) -> list[LeaseRecord]:
        """Returns the Leases that a multisched has written, by name."""
        path = f"{leases_path(self.namespace)}?limit={LEASES_MAX}"
        answer = await transport.request("GET", path, timeout_s=READ_TIMEOUT_S)
        if answer.status != 200:
            why = parse_status(answer.body).message or f"the API server returned {answer.status}"
            hint = f"; {RIGHTS}" if answer.status == 403 else ""
            raise QueryError(
                f"the Leases of namespace {self.namespace} cannot be read: {why}{hint}", ExitCode.NO_CLUSTER
            )
        try:
            found = msgspec.json.decode(answer.body, type=_Leases).items
        except UNREADABLE as error:
            raise QueryError(f"{transport.host} is not an API server: {error}", ExitCode.NO_CLUSTER) from error
        ours = (one for one in found if any(key.startswith(OURS) for key in one.metadata.annotations))
        return sorted(ours, key=lambda one: one.metadata.name)


class Tunnel:
    """A connection into the pod of a leader."""

    def __init__(self, deployment: Deployment, leader: Leader, port: int) -> None:
        self._deployment = deployment
        self._leader = leader
        self.port = port
        self._forward: PortForward | None = None
        self.pod = leader.identity[:-IDENTITY_END]

    def open(self) -> socket.socket:
        """Returns the local end. Raises NoAnswerError."""
        near, far = socket.socketpair()
        opened: Future[None] = Future()
        threading.Thread(target=self._work, args=(far, opened), name="port-forward", daemon=True).start()
        try:
            opened.result(2 * OPEN_TIMEOUT_S)
        except PortForwardError as error:
            near.close()
            raise NoAnswerError(self._advice(error)) from error
        except (CredentialsError, TransportError, TimeoutError) as error:
            near.close()
            raise NoAnswerError(str(error) or "the port-forward does not open") from error
        return near

    @property
    def trouble(self) -> str:
        """The error text of the remote side; empty if there is none."""
        said = "" if self._forward is None else self._forward.trouble
        return f"port {self.port} of pod {self.pod}: {said}" if said else ""

    def _work(self, far: socket.socket, opened: Future[None]) -> None:
        async def carry(transport: HttpTransport) -> None:
            self._forward = PortForward(transport, self._deployment.namespace, self.pod, self.port)
            await self._forward.run(far, lambda: opened.set_result(None))

        try:
            anyio.run(self._deployment.connected, carry)
        except Exception as error:  # noqa: BLE001 -- raised in `open`, or the connection has ended
            if not opened.done():
                opened.set_exception(error)
        finally:
            far.close()

    def _advice(self, error: PortForwardError) -> str:
        namespace, address = self._deployment.namespace, self._leader.address
        if error.status in (401, 403):
            return f"{error}; {RIGHTS}"
        if error.status == 404:
            return (
                f"{error}: the leader {self._leader.identity} was deleted, and another replica will lead soon; or it is not a pod of"
                f" namespace {namespace}: then use --server {address}"
            )
        return f"{error}; check it: kubectl -n {namespace} get pod {self.pod}"
