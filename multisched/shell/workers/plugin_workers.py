"""Threads and processes for the isolated plugins of one program; implements `framework.isolation.WorkerFactory`.

Needs real time: in virtual time a timeout would always expire before a thread answers. Simulations use
`testing.loop.virtual_workers` instead, which runs the same requests through the same code.
"""

from __future__ import annotations

from multisched.framework.dependency import Isolation
from multisched.framework.isolation import Worker
from multisched.framework.points import Plugin
from multisched.framework.registry import PluginUse
from multisched.shell.workers.plugin_processes import ProcessWorker
from multisched.shell.workers.plugin_threads import ThreadWorker


class PluginWorkers:
    """One worker per isolated plugin and domain."""

    def __init__(self) -> None:
        self.threads: list[ThreadWorker] = []
        self.processes: list[ProcessWorker] = []

    def worker(self, plugin: Plugin, use: PluginUse) -> Worker:
        if use.isolation is Isolation.THREAD:
            thread = ThreadWorker(plugin, use.timeout_s)
            self.threads.append(thread)
            return thread
        process = ProcessWorker(plugin, use)
        self.processes.append(process)
        return process

    async def close(self) -> None:
        """Ends idle threads and all processes."""
        for thread in self.threads:
            thread.close()
        for process in self.processes:
            await process.close()
