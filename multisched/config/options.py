"""What a subcommand was asked to do, as values: the contract between `cli` and the composition root `app`.

No I/O, no third-party imports: `multisched version` must stay fast.
"""

from __future__ import annotations

from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:
    from multisched.config.schema import Configuration

NODES_MAX: Final = 100_000


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


class RunOptions(msgspec.Struct, frozen=True):
    """`multisched run`."""

    configuration: Configuration
    identity: str
    """Unique name of this process, holder of its leases."""
    namespace: str
    """Where the program itself runs: its leases, unless the configuration names another namespace."""
    kubeconfig: Path | None = None
    """None: the pod's service account, else the user's default kubeconfig."""
    context: str | None = None
    config: ConfigText | None = None
    """The file that `configuration` is read from, which is followed; None: the defaults."""

    @property
    def lease_namespace(self) -> str:
        return self.configuration.lease.namespace or self.namespace


class DemoOptions(msgspec.Struct, frozen=True):
    """`multisched demo`: the embedded cluster, the scheduler and a mixed workload."""

    configuration: Configuration
    identity: str
    nodes: int = 300
    job_pods: int = 1000
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
