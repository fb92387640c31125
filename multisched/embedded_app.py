"""Composition root of the embedded cluster (`multisched cluster`) and of fake kubelets (`multisched kubelets`).

`multisched run` never imports this module or the embedded cluster.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import random
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import anyio
import anyio.abc
import orjson

from multisched.app import SystemClock, wait_reachable
from multisched.client.transport import connect
from multisched.cluster.controllers.fake_provisioner import run_provisioner
from multisched.cluster.controllers.run import run_controllers
from multisched.cluster.embedded import EmbeddedCluster
from multisched.cluster.gpu_nodes import gpu_nodes
from multisched.cluster.kubelet.kubelets import Kubelets
from multisched.cluster.kubelet.stages import StageError, StageSet, load_stages
from multisched.cluster.kubelet.stages_builtin import builtin_stages
from multisched.cluster.seed import demo_nodes, demo_storage
from multisched.config.options import ClusterOptions, ExitCode, KubeletsOptions, RefusedError
from multisched.model.wire import Transport
from multisched.observe.logging import logging_to

logger = logging.getLogger(__name__)

CREATES_IN_FLIGHT = 32

DEFINITION: Final = "CustomResourceDefinition"
_COLLECTIONS = {
    "Pod": "/api/v1/namespaces/{namespace}/pods",
    "Job": "/apis/batch/v1/namespaces/{namespace}/jobs",
    "Deployment": "/apis/apps/v1/namespaces/{namespace}/deployments",
    "ElasticQuotaTree": "/apis/scheduling.sigs.k8s.io/v1beta1/namespaces/{namespace}/elasticquotatrees",
    "CustomResourceDefinition": "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
    "Namespace": "/api/v1/namespaces",
    "Node": "/api/v1/nodes",
    "StorageClass": "/apis/storage.k8s.io/v1/storageclasses",
    "CSIDriver": "/apis/storage.k8s.io/v1/csidrivers",
    "CSINode": "/apis/storage.k8s.io/v1/csinodes",
    "Device": "/apis/scheduling.koordinator.sh/v1alpha1/devices",
}


async def cluster(options: ClusterOptions) -> ExitCode:
    """Runs `multisched cluster`: the embedded cluster with controllers, fake kubelets and nodes, until SIGTERM."""
    clock = SystemClock()
    rng = random.Random()  # noqa: S311 - jitter
    refuse_kubeconfig(options.kubeconfig)

    async def controllers(running: EmbeddedCluster) -> None:
        await run_controllers(running.transport(), clock=clock, rng=rng)

    async def kubelets(running: EmbeddedCluster) -> None:
        delay_s = (options.gpu_plugin_delay_s, options.gpu_plugin_delay_s)
        stages = builtin_stages("fast")
        await Kubelets(running.transport(), clock=clock, rng=rng, stages=stages, plugin_delay_s=delay_s).run()

    with _logging_warnings(), _port_taken(options.port):
        async with EmbeddedCluster.start(clock, port=options.port, parts=[controllers, kubelets]) as running:
            nodes = demo_nodes(options.nodes)
            shared = [one for template, count in options.gpu_nodes for one in gpu_nodes(template, count)]
            storage = demo_storage([*nodes, *(one for one in shared if one["kind"] == "Node")])
            await create_all(running.transport(), [*nodes, *shared, *options.virtual_nodes, *storage])
            with _kubeconfig_of(running, options.kubeconfig):
                text = f"embedded cluster: {running.url}\nexport KUBECONFIG={options.kubeconfig}"
                await (_input_ended if options.until_input_ends else _signalled)(partial(print, text, flush=True))
    return ExitCode.OK


@contextlib.contextmanager
def _kubeconfig_of(running: EmbeddedCluster, path: Path) -> Iterator[None]:
    """Writes the kubeconfig atomically, and deletes it at the end unless it was replaced meanwhile."""
    with _written(path):
        unfinished = _unfinished(path)
        running.write_kubeconfig(unfinished)
        ours = unfinished.read_bytes()
        unfinished.replace(path)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            if path.read_bytes() == ours:
                path.unlink()


@contextlib.contextmanager
def _port_taken(port: int) -> Iterator[None]:
    """Raises RefusedError if the port is in use."""
    try:
        yield
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        raise RefusedError(f"127.0.0.1:{port} is taken; name another --port, or 0 for any free one") from error


def refuse_kubeconfig(path: Path) -> None:
    """Raises RefusedError if the file exists and no embedded cluster wrote it, or if it cannot be written."""
    with _written(path):
        if path.exists() and not is_embedded_kubeconfig(path):
            raise RefusedError(f"{path} was not written by multisched; name a file that does not exist")
        _unfinished(path).touch(mode=0o600)
        _unfinished(path).unlink()


def _unfinished(kubeconfig: Path) -> Path:
    return kubeconfig.with_name(kubeconfig.name + ".partial")


@contextlib.contextmanager
def _written(kubeconfig: Path) -> Iterator[None]:
    """Raises RefusedError if the file cannot be written."""
    try:
        yield
    except OSError as error:
        fix = "create the folder first" if isinstance(error, FileNotFoundError) else "name another --kubeconfig"
        raise RefusedError(f"{kubeconfig} cannot be written: {error.strerror}; {fix}") from error


def is_embedded_kubeconfig(path: Path) -> bool:
    """Reports whether `multisched cluster` wrote the file, so that it may be overwritten."""
    try:
        contexts = orjson.loads(path.read_bytes())["contexts"]
        return [context["name"] for context in contexts] == ["embedded", "embedded-token"]
    except (OSError, ValueError, KeyError, TypeError):
        return False


async def _signalled(on_ready: Callable[[], object] = lambda: None) -> None:
    """Waits for SIGTERM or Ctrl-C. `on_ready`: called when the signals are handled here and no longer end the process."""
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        on_ready()
        async for _ in signals:
            return


async def _input_ended(on_ready: Callable[[], object]) -> None:
    """Waits as `_signalled` does, or until standard input is closed."""
    loop, reader = asyncio.get_running_loop(), asyncio.StreamReader()
    pipe, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    try:
        async with anyio.create_task_group() as tasks:

            async def ended() -> None:
                await reader.read()
                tasks.cancel_scope.cancel()

            tasks.start_soon(ended)
            await _signalled(on_ready)
            tasks.cancel_scope.cancel()
    finally:
        pipe.close()


@contextlib.contextmanager
def _logging_warnings() -> Iterator[None]:
    """Logs warnings to standard error, for commands that are run by hand."""
    clock = SystemClock()
    with logging_to(sys.stderr.buffer, level="warning", form="text", clock=clock, is_terminal=sys.stderr.isatty()):
        yield


async def kubelets(options: KubeletsOptions) -> ExitCode:
    """Runs `multisched kubelets`: fake kubelets and a provisioner of fake volumes, for any cluster, until SIGTERM."""
    stages = builtin_stages("fast")
    if options.stages is not None:
        stages = await _read_stages(options.stages)
    with _logging_warnings():
        async with connect(options.kubeconfig, options.context) as transport, anyio.create_task_group() as tasks:
            rng = random.Random(options.seed)  # noqa: S311 - jitter

            async def work() -> None:
                await wait_reachable(transport)
                clock = SystemClock()
                tasks.start_soon(partial(run_provisioner, transport, clock=clock, rng=rng))
                await Kubelets(transport, clock=clock, rng=rng, stages=stages).run()

            tasks.start_soon(work)
            await _signalled()
            tasks.cancel_scope.cancel()
    return ExitCode.OK


async def _read_stages(path: Path) -> StageSet:
    """Reads stage documents. Raises RefusedError."""
    try:
        return load_stages(await anyio.Path(path).read_text("utf-8"), source=str(path))
    except OSError as error:
        raise RefusedError(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise RefusedError(f"{path} is not UTF-8 text; name a file of Stage documents") from error
    except StageError as error:
        raise RefusedError(str(error)) from error


async def create_all(transport: Transport, documents: Sequence[Mapping[str, Any]]) -> None:
    """Creates objects concurrently, definitions first. Logs refusals with the message of the server."""
    definitions = [one for one in documents if one["kind"] == DEFINITION]
    await _create_at_once(transport, definitions)
    await _create_at_once(transport, [one for one in documents if one["kind"] != DEFINITION])


async def _create_at_once(transport: Transport, documents: Sequence[Mapping[str, Any]]) -> None:
    waiting = iter(documents)

    async def create() -> None:
        for document in waiting:
            namespace = document["metadata"].get("namespace", "default")
            path = _COLLECTIONS[document["kind"]].format(namespace=namespace)
            answer = await transport.request("POST", path, body=orjson.dumps(document))
            if answer.status >= 300:
                logger.error("not created", extra={"kind": document["kind"], "answer": answer.body[:256].decode()})

    async with anyio.create_task_group() as tasks:
        for _ in range(CREATES_IN_FLIGHT):
            tasks.start_soon(create)
