"""multisched on the real control plane as `deploy/base` installs it: its ServiceAccount, its RBAC, its configuration.

`Deployed` applies the kustomization once and starts processes in place of its pods, which no machine would run. They differ
from the pods in the server's settings: loopback instead of all interfaces, and any free ports.
"""

from __future__ import annotations

import base64
import copy
import json
import ssl
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import aiohttp
import anyio
import yaml

from tests.real.admin import Admin, until
from tests.real.control_plane import ControlPlane
from tests.real.program import Program

BASE: Final = Path(__file__).parents[2] / "deploy" / "base"
MULTISCHED: Final = Path(sys.executable).with_name("multisched")
NAMESPACE: Final = "multisched-system"
ACCOUNT: Final = "multisched"
USER: Final = f"system:serviceaccount:{NAMESPACE}:{ACCOUNT}"
READY_LIMIT_S: Final = 90
LEASES: Final = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases"
LEASE: Final = "multisched-forecast"
"""Of all domains."""


@dataclass(frozen=True, slots=True)
class Scheduler:
    """One `multisched run` process."""

    identity: str
    credential: str
    """How the audit log calls its token."""
    program: Program

    def log_lines(self) -> Iterator[dict[str, Any]]:
        """What it logged so far; a line it is still writing is left out."""
        for line in self.program.log.read_text().splitlines():
            if line.startswith("{") and line.endswith("}"):
                yield json.loads(line)

    def denials(self) -> list[str]:
        """Log lines that say it lacked a right."""
        return [line for line in self.program.log.read_text().splitlines() if _is_denial(line)]

    def failures(self) -> list[str]:
        """Log lines that say it failed in a way nobody expected, a traceback for instance."""
        return [line for line in self.program.log.read_text().splitlines() if _is_failure(line)]

    async def get(self, path: str, token: str = "") -> tuple[int, str]:
        """An answer of its own server, whose certificate nobody signed."""
        (url,) = (line["url"] for line in self.log_lines() if "url" in line)
        tls = ssl.create_default_context()
        tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        connector = aiohttp.TCPConnector(ssl=tls, force_close=True)
        async with (
            aiohttp.ClientSession(connector=connector, headers=headers) as session,
            session.get(url + path) as answer,
        ):
            return answer.status, await answer.text()

    async def wait_ready(self) -> None:
        """Until /readyz says that the caches are in step, on the port that its probe would ask."""

        async def is_ready() -> bool:
            self.program.check_running()
            for line in self.log_lines():
                if line.get("probes"):
                    async with aiohttp.request("GET", f"{line['probes']}/readyz") as answer:
                        return answer.status == 200
            return False

        await until(is_ready, READY_LIMIT_S)

    async def wait_leading(self, admin: Admin) -> None:
        """Until it holds the lease of all domains."""

        async def holds_it() -> bool:
            self.program.check_running()
            leases = await admin.items(LEASES)
            holders = {lease["metadata"]["name"]: lease["spec"].get("holderIdentity") or "" for lease in leases}
            return holders.keys() == {LEASE} and holders[LEASE].startswith(f"{self.identity}-")

        await until(holds_it, READY_LIMIT_S)


class Deployed:
    """Only `install` makes one."""

    def __init__(self, plane: ControlPlane, folder: Path = BASE) -> None:
        self._plane = plane
        self._folder = folder

    @classmethod
    async def install(cls, plane: ControlPlane, folder: Path = BASE) -> Deployed:
        """Applies `deploy/base` whole, or an overlay: the API server judges every object of it, Pod Security included."""
        await plane.kubectl("apply", "-k", str(folder))
        return cls(plane, folder)

    async def start(
        self, identity: str, settings: Mapping[str, Any] | None = None, *, port: int | None = None
    ) -> Scheduler:
        """A process with the account's rights and a token of its own; `settings` are laid over the configuration.

        `port`: of loopback, where it reaches the API server; None: the API server's own.
        """
        plane = self._plane
        kubeconfig = await plane.service_account_kubeconfig(NAMESPACE, ACCOUNT, identity, port=port)
        document = yaml.safe_load((self._folder / "multisched.yaml").read_text())
        document |= copy.deepcopy(dict(settings or {}))
        document["server"] |= {"bindAddress": "127.0.0.1", "port": 0, "probePort": 0}
        configuration = plane.folder / f"{identity}.yaml"
        await anyio.Path(configuration).write_text(json.dumps(document))
        command = [str(MULTISCHED), "run", "--kubeconfig", str(kubeconfig), "--config", str(configuration)]
        pod = {"POD_NAME": identity, "POD_NAMESPACE": NAMESPACE}
        program = await plane.start_program(identity, command, pod)
        return Scheduler(identity, credential_of(kubeconfig), program)


def _is_denial(line: str) -> bool:
    return "forbidden" in line.lower() or (line.startswith("{") and json.loads(line).get("status") in (401, 403))


def _is_failure(line: str) -> bool:
    return not line.startswith("{") or json.loads(line)["level"] in ("error", "critical")


def credential_of(kubeconfig: Path) -> str:
    """How the audit log calls the token of a ServiceAccount's kubeconfig."""
    token = json.loads(kubeconfig.read_text())["users"][0]["user"]["token"]
    payload = token.split(".")[1]
    return f"JTI={json.loads(base64.urlsafe_b64decode(payload + '=' * (-len(payload) % 4)))['jti']}"
