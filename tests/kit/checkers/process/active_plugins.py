"""Checks that each part of a process uses the plugins in force, and none of an earlier profile (I12)."""

from __future__ import annotations

from multisched.framework.object_status import PendingPodsPlugin, StatusPlugin
from multisched.framework.points import EnqueueExtensions, Plugin
from multisched.framework.registry import implements
from multisched.model.object_kinds import ObjectKind
from multisched.shell.program import Program


def fault_of_plugins(program: Program) -> str:
    """Returns the first part that uses other plugins than its domain; empty for none."""
    says: dict[ObjectKind, Plugin] = {}
    counts: dict[str, Plugin] = {}
    for worker in sorted(program.router.workers(), key=lambda one: one.name):
        plugins = [one.plugin for one in worker.plugins.built]
        for plugin in plugins:
            if implements(plugin, StatusPlugin):
                for kind in plugin.status_kinds:
                    says.setdefault(kind, plugin)
            if implements(plugin, PendingPodsPlugin):
                counts.setdefault(plugin.name, plugin)
        hinting = {plugin.name for plugin in plugins if implements(plugin, EnqueueExtensions)}
        if not hinting <= worker.queue.hints._registrations.keys():
            return f"I12: the queue of {worker.name} does not know the hints of {sorted(hinting)}"
        if worker.queue._gates.plugins != worker.plugins.pre_enqueue:
            return f"I12: the queue of {worker.name} has other gates than its profile"
        if worker.cycle.plugins is not worker.plugins:
            return f"I12: the cycle of {worker.name} has another profile than its domain"
    for kind, plugin in says.items():
        if program.statuses._sources[kind].plugin is not plugin:
            return f"I12: statuses of {kind.value} come from a plugin that is not in force"
    for name, plugin in counts.items():
        if program.statuses._of_pending[name][0] is not plugin:
            return f"I12: pending pods are counted by a plugin {name} that is not in force"
    return ""
