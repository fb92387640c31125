"""Selects the domain of a repair query, and its plugin that plans repairs."""

from __future__ import annotations

from multisched.framework.registry import implements
from multisched.framework.repair import RepairingPlugin, RepairRefusedError
from multisched.model.near_names import did_you_mean
from multisched.shell.domain import DomainWorker
from multisched.shell.program import Program


def choose(program: Program, domain: str) -> tuple[DomainWorker, RepairingPlugin]:
    """Returns the domain and its plugin that plans repairs. Raises RepairRefusedError."""
    found = {worker.name: (worker, plugin) for worker, plugin in _repairing(program)}
    if domain in found:
        return found[domain]
    names = [worker.name for worker in program.router.workers()]
    if domain:
        hint = did_you_mean(domain, found, f"those that can: {', '.join(found) or 'none'}")
        what = "no plugin that plans repairs" if domain in names else "no such domain"
        raise RepairRefusedError(f"domain {domain}: {what}; {hint}", status=404)
    if not found:
        raise RepairRefusedError("no domain has a plugin that plans repairs; enable PeakForecast in one", status=404)
    if len(found) > 1:
        raise RepairRefusedError(f"several domains can be repaired; choose one of {', '.join(found)}")
    return next(iter(found.values()))


def _repairing(program: Program) -> list[tuple[DomainWorker, RepairingPlugin]]:
    return [
        (worker, built.plugin)
        for worker in program.router.workers()
        for built in worker.plugins.built
        if implements(built.plugin, RepairingPlugin)
    ]
