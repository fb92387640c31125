"""Options of subcommands as values: the contract between `cli` and the composition root `app`.

No I/O, no third-party imports: `multisched version` must stay fast.
"""

from __future__ import annotations

from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

import msgspec
from msgspec.structs import replace

if TYPE_CHECKING:
    from multisched.config.schema import Configuration

LogLevel = Literal["debug", "info", "warning", "error"]
LogFormat = Literal["text", "json"]

NODES_MAX: Final = 100_000
DEFAULT_SERVER: Final = "http://127.0.0.1:10260"
"""The address at which commands expect a running multisched: the default of `server` in the configuration."""
DUMP_COMMAND: Final = "kubectl get nodes,pods,namespaces,pv,pvc,sc,csinodes -A -o json"
"""Creates the dump that commands accept instead of a cluster."""
DRY_RUN_AUDIT_S: Final = 24 * 3600.0
"""Audit period of a dry run, the longest possible: an audit would report the missing binds."""


class ExitCode(IntEnum):
    """Exit codes of the commands."""

    OK = 0
    PROBLEM = 1
    """A problem was found: a check failed, a lease was lost, or pods were left unbound."""
    USAGE = 2
    """The command line or the configuration is wrong; nothing was started."""
    NO_CLUSTER = 3
    """No API server, no credentials, or no running multisched."""


INTERRUPTED: Final = 130
"""Exit code of a program ended by Ctrl-C, as shells report it: here by a second one, or by one before the command had started."""


class RefusedError(Exception):
    """A command cannot be carried out; the message gives the reason and the fix, and is all that the user sees."""

    def __init__(self, message: str, code: ExitCode = ExitCode.USAGE) -> None:
        super().__init__(message)
        self.code = code


class ConfigText(msgspec.Struct, frozen=True):
    """The path and text of a configuration file."""

    path: Path
    text: str


class RunOverrides(msgspec.Struct, frozen=True):
    """Flags of `multisched run` that override the configuration file; None: not set."""

    log_level: LogLevel | None = None
    log_format: LogFormat | None = None
    port: int | None = None
    is_dry_run: bool = False
    """Decide and log, but write nothing to the API server."""

    def over(self, configuration: Configuration) -> Configuration:
        """Returns the configuration with these overrides. Raises RefusedError for conflicting settings."""
        server, logging = configuration.server, configuration.logging
        if self.port is not None:
            if not server.enabled:
                raise RefusedError("--port conflicts with server.enabled: false; remove one")
            if self.port and self.port == server.probe_port:
                raise RefusedError(f"--port {self.port} is the same as server.probePort; choose another port")
            ports = {"port": self.port}
            if self.port == 0 and server.probe_port is not None:
                ports["probe_port"] = 0  # a process with the same configuration may run on this machine
            server = replace(server, **ports)
        said = {"level": self.log_level, "format": self.log_format}
        logging = replace(logging, **{name: value for name, value in said.items() if value is not None})
        changed = replace(configuration, server=server, logging=logging)
        return _without_writes(changed) if self.is_dry_run else changed


def _without_writes(configuration: Configuration) -> Configuration:
    """Disables the lease, which would be written, and the audit, which would report missing binds. Raises RefusedError."""
    for domain in configuration.domains:
        for extender in domain.extenders:
            if extender.bind_verb:
                raise RefusedError(
                    f"--dry-run cannot keep the extender {extender.url_prefix} of domain {domain.name} from binding; remove its bindVerb"
                )
    lease = replace(configuration.lease, enabled=False)
    client = replace(configuration.client, audit_period_s=DRY_RUN_AUDIT_S)
    return replace(configuration, lease=lease, client=client)


class RunOptions(msgspec.Struct, frozen=True):
    """`multisched run`."""

    configuration: Configuration
    """Including the overrides."""
    identity: str
    """Unique name of this process, holder of its leases."""
    namespace: str
    """Namespace of the program; its leases are there unless the configuration names another namespace."""
    kubeconfig: Path | None = None
    """None: the pod's service account or, if there is none, the user's default kubeconfig."""
    context: str | None = None
    config: ConfigText | None = None
    """The file from which `configuration` was read, which is watched; None: the defaults are used."""
    overrides: RunOverrides = RunOverrides()
    """The flags, applied again when the file is reloaded."""

    @property
    def lease_namespace(self) -> str:
        return self.configuration.lease.namespace or self.namespace


class DemoOptions(msgspec.Struct, frozen=True):
    """`multisched demo`: the embedded cluster, the scheduler and a mixed workload."""

    configuration: Configuration
    identity: str
    nodes: int = 300
    job_pods: int | None = None
    """Number of pods in the burst; None: depends on the number of nodes."""
    is_once: bool = False
    """End when every feasible pod is bound, instead of running until Ctrl-C."""
    output: str = "table"
    """table (live progress) or json (one document at the end)."""
    kubeconfig: Path | None = None
    """Where the kubeconfig is written; None: a file in a temporary folder."""
    seed: int = 0


class ClusterOptions(msgspec.Struct, frozen=True):
    """`multisched cluster`: the embedded API server with fake nodes."""

    kubeconfig: Path
    """Where the file for kubectl is written."""
    nodes: int = 0
    gpu_nodes: tuple[tuple[str, int], ...] = ()
    """Name of a template (`cluster.gpu_nodes.GPU_TEMPLATES`) and number of nodes."""
    gpu_plugin_delay_s: float = 0.0
    """Time in which a GPU device plugin answers."""
    virtual_nodes: tuple[dict[str, object], ...] = ()
    """Manifests of further nodes (`cluster.virtual_nodes`)."""
    port: int = 0
    """0: any free port."""
    until_input_ends: bool = False
    """End when standard input is closed, in addition to signals."""


class KubeletsOptions(msgspec.Struct, frozen=True):
    """`multisched kubelets`: fake kubelets for the nodes of any cluster."""

    kubeconfig: Path
    context: str | None = None
    stages: Path | None = None
    """A file of Stage documents; None: the built-in ones."""
    seed: int = 0
