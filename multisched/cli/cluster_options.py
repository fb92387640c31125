"""Options of commands that read a cluster themselves, live or as a dump, without a running multisched."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from multisched.cli.options import Context, Kubeconfig, fail, show
from multisched.config.options import DUMP_COMMAND

if TYPE_CHECKING:
    from multisched.whatif.live_cluster import Listed
    from multisched.whatif.sandbox import ClusterSnapshot

Snapshot = Annotated[
    Path | None,
    typer.Option(help=f"Read this output of {DUMP_COMMAND} instead of a cluster; - for standard input."),
]


def kubeconfig_of(given: Path | None, context: str | None) -> Path | None:
    """Returns the kubeconfig to read: if none is given and the user has none, that of a demo running on this machine.

    Only for commands that write nothing. None: the usual order of `connect`.
    """
    if given is not None or context is not None or os.environ.get("KUBECONFIG"):
        return given
    from multisched.client.auth import SERVICE_ACCOUNT
    from multisched.demo.demo_kubeconfig import demo_kubeconfig

    if (SERVICE_ACCOUNT / "token").exists() or (Path.home() / ".kube" / "config").exists():
        return None
    found = demo_kubeconfig(os.environ)
    if found is not None:
        show(f"multisched: you have no kubeconfig; using the cluster of the demo, {found}", to_errors=True)
    return found


@dataclass(frozen=True, slots=True)
class ClusterOptions:
    """Options for a cluster by its kubeconfig, or for a dump of one."""

    kubeconfig: Kubeconfig = None
    context: Context = None
    snapshot: Snapshot = None

    async def snapshot_of(self, kinds: Sequence[Listed]) -> ClusterSnapshot:
        """Returns the objects of the kinds. Raises RefusedError, CredentialsError or TransportError."""
        from multisched.model.decode import Decoder
        from multisched.whatif.live_cluster import read_cluster

        now = datetime.now(UTC)
        if self.snapshot is not None:
            from multisched.cli.dump import items_of
            from multisched.whatif.sandbox import SnapshotReader

            if self.kubeconfig is not None or self.context is not None:
                fail("--snapshot excludes --kubeconfig and --context: it is read instead of a cluster")
            reader = SnapshotReader(Decoder())
            for raw in items_of(self.snapshot):
                reader.add(raw)
            return reader.snapshot(now)
        from multisched.client.transport import connect

        async with connect(kubeconfig_of(self.kubeconfig, self.context), self.context) as transport:
            return await read_cluster(transport, kinds, Decoder(), now)
