"""What a subcommand was asked to do, as values: the contract between `cli` and the composition root `app`.

No I/O, no third-party imports: `multisched version` must stay fast.
"""

from __future__ import annotations

from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

import msgspec

if TYPE_CHECKING:
    from multisched.config.schema import Configuration

NODES_MAX: Final = 100_000
DEFAULT_SERVER: Final = "http://127.0.0.1:10260"
"""Where commands look for a running multisched; as the default of `server` in the configuration."""
DUMP_COMMAND: Final = "kubectl get nodes,pods,namespaces,pv,pvc,sc,csinodes -A -o json"
"""Makes the dump that commands take in place of a cluster."""
DRY_RUN_AUDIT_S: Final = 24 * 3600.0
"""An audit would find that nothing is bound. It is as seldom as can be."""


class ExitCode(IntEnum):
    """What a shell script learns from us."""

    OK = 0
    PROBLEM = 1
    """Found a problem: a check failed, a lease was lost, pods were left unbound."""
    USAGE = 2
    """The command line or the configuration is wrong; nothing was started."""
    NO_CLUSTER = 3
    """No API server, no credentials, or no running multisched to ask."""


class RefusedError(Exception):
    """A command cannot do what it was asked; the message says why and what to do, and is all the user sees."""

    def __init__(self, message: str, code: ExitCode = ExitCode.USAGE) -> None:
        super().__init__(message)
        self.code = code


class ConfigText(msgspec.Struct, frozen=True):
    """A configuration file as it was read."""

    path: Path
    text: str


class RunOverrides(msgspec.Struct, frozen=True):
    """Flags of `multisched run` that count more than the configuration file; None: as it says."""

    log_level: Literal["debug", "info", "warning", "error"] | None = None
    log_format: Literal["json", "text"] | None = None
    port: int | None = None
    is_dry_run: bool = False
    """Decide and log, but write nothing."""

    def over(self, configuration: Configuration) -> Configuration:
        """The configuration with these laid over it. Raises RefusedError for what does not go together."""
        server, logging = configuration.server, configuration.logging
        if self.port is not None:
            if not server.enabled:
                raise RefusedError("--port goes without server.enabled: false; remove one")
            if self.port and self.port == server.probe_port:
                raise RefusedError(f"--port {self.port} is server.probePort, too; name another one")
            ports = {"port": self.port}
            if self.port == 0 and server.probe_port is not None:
                ports["probe_port"] = 0  # it may run beside a process with the same configuration
            server = server.model_copy(update=ports)
        said = {"level": self.log_level, "format": self.log_format}
        logging = logging.model_copy(update={name: value for name, value in said.items() if value is not None})
        changed = configuration.model_copy(update={"server": server, "logging": logging})
        return _without_writes(changed) if self.is_dry_run else changed


def _without_writes(configuration: Configuration) -> Configuration:
    """Without a lease, which would be a write, and without an audit, which would miss the binds. Raises RefusedError."""
    for domain in configuration.domains:
        for extender in domain.extenders:
            if extender.bind_verb:
                raise RefusedError(
                    f"--dry-run cannot keep the extender {extender.url_prefix} of domain {domain.name} from binding; remove its bindVerb"
                )
    lease = configuration.lease.model_copy(update={"enabled": False})
    client = configuration.client.model_copy(update={"audit_period_s": DRY_RUN_AUDIT_S})
    return configuration.model_copy(update={"lease": lease, "client": client})


class RunOptions(msgspec.Struct, frozen=True):
    """`multisched run`."""

    configuration: Configuration
    """With the flags laid over it."""
    identity: str
    """Unique name of this process, holder of its leases."""
    namespace: str
    """Where the program itself runs: its leases, unless the configuration names another namespace."""
    kubeconfig: Path | None = None
    """None: the pod's service account, else the user's default kubeconfig."""
    context: str | None = None
    config: ConfigText | None = None
    """The file that `configuration` is read from, which is followed; None: the defaults."""
    overrides: RunOverrides = RunOverrides()
    """The flags, for a configuration that is read later."""

    @property
    def lease_namespace(self) -> str:
        return self.configuration.lease.namespace or self.namespace


class DemoOptions(msgspec.Struct, frozen=True):
    """`multisched demo`: the embedded cluster, the scheduler and a mixed workload."""

    configuration: Configuration
    identity: str
    nodes: int = 300
    job_pods: int | None = None
    """Of the burst; None: as many as suit the nodes."""
    is_once: bool = False
    """End when every feasible pod is bound, instead of running until Ctrl-C."""
    output: str = "table"
    """table (live progress) or json (one document at the end)."""
    kubeconfig: Path | None = None
    """Where to write it; None: a file in a temporary folder."""
    seed: int = 0


class ClusterOptions(msgspec.Struct, frozen=True):
    """`multisched cluster`: the embedded API server with fake nodes."""

    kubeconfig: Path
    """Where the file for kubectl is written."""
    nodes: int = 0
    port: int = 0
    """0: any free one."""
    until_input_ends: bool = False
    """End with the process that holds the other end of standard input, besides signals."""


class KubeletsOptions(msgspec.Struct, frozen=True):
    """`multisched kubelets`: fake kubelets for the nodes of any cluster."""

    kubeconfig: Path
    context: str | None = None
    stages: Path | None = None
    """A file of Stage documents; None: the built-in ones."""
    seed: int = 0
