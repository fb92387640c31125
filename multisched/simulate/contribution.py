"""What a domain adds to `multisched simulate`: policies, sections of the scenario file, hooks of a run, and workloads.

A built-in domain names its `Contribution` in `domains.SIMULATIONS`, as it names its commands in `domains.COMMANDS`. It is
imported when a scenario is read. Nothing in `multisched` depends on a domain.

A workload is what a scenario plays on the virtual cluster: which nodes and pods come when, and the figures of the result.
The engine has one, recorded services (`recorded_services`). A domain may add others, each with a key of the file that selects it.
"""

from __future__ import annotations

import importlib
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from pathlib import Path as FilePath
from pkgutil import resolve_name
from typing import Any, Protocol, runtime_checkable

import msgspec

from multisched.config.document import Document, Path
from multisched.config.schema import Configuration
from multisched.config.sections import Section
from multisched.simulate.report import Report
from multisched.simulate.scenario import Policy, Scenario
from multisched.simulate.scenario_schema import ScenarioHeader
from multisched.simulate.virtual_cluster import VirtualCluster


class Outcome(Protocol):
    """The figures of one run, sent back by the process that ran it."""

    @property
    def is_whole(self) -> bool:
        """Whether the run has nothing to complain about; else the command ends with code 1."""


class Simulation(Protocol):
    """A scenario that was read, with its workload. Sent to the processes that run it, so it must be picklable."""

    @property
    def policies(self) -> tuple[Policy, ...]:
        """In the order of the report; each name once."""

    @property
    def seeds(self) -> tuple[int, ...]:
        """Each policy runs once with each seed."""

    def runner(self) -> Callable[[Policy, int], Outcome]:
        """Returns the function that runs a policy with a seed. Called once per process, so the function may have caches.

        The function must be deterministic in its arguments. It raises PluginSetupError if a plugin cannot be built.
        """

    def report(self, outcomes: Mapping[str, Sequence[Any]]) -> Report:
        """Returns the report; `outcomes`: policy -> outcomes in the order of the seeds."""


@runtime_checkable
class RecordingSimulation(Protocol):
    """A simulation whose runs can write a log of events."""

    def recording(self) -> Simulation:
        """Returns the same simulation, whose outcomes keep the events."""

    def events(self, outcomes: Mapping[str, Sequence[Any]]) -> Iterator[bytes]:
        """Yields the events, one JSON object each, without a line end."""


class Workload(msgspec.Struct, frozen=True):
    """How a scenario file of this workload is read."""

    file: type[ScenarioHeader]
    """The whole file: the header and the sections of the workload."""
    default_policies: tuple[str, ...]
    """The policies of a file that names none."""
    read: Callable[[Document, Any, tuple[Policy, ...], FilePath], Simulation]
    """Gets the document, the validated file, the policies and the file's path. Adds problems to the document; raises ConfigError
    if nothing can be returned. The document may already have problems of policies."""


class PolicySection(msgspec.Struct, frozen=True):
    """A section that an entry of `policies` may have in scenarios of recorded services."""

    type: type[Section]
    """Its keys, their types and defaults."""
    read: Callable[[Document, Path, Any, Policy], Any]
    """Gets the section at its path, and the policy without it. Returns the value for `Policy.sections`, which must be picklable;
    None after adding problems to the document."""
    check: Callable[[Document, Path, Any, Scenario], None]
    """Adds problems of the value that depend on the rest of the scenario."""


class TimedStep(msgspec.Struct, frozen=True):
    """Something that a run does when its wall clock has jumped to `at_s`, an epoch second."""

    at_s: float
    run: Callable[[], Awaitable[None]]


class RunReport(msgspec.Struct, frozen=True):
    """What a run reports in addition to the figures of the workload."""

    fields: Mapping[str, Any]
    """JSON fields of the run. Every run of a scenario has the same ones."""
    notes: tuple[str, ...] = ()
    """For the table and the HTML page."""


class ServicesRun(Protocol):
    """What hooks may use of a run of recorded services."""

    cluster: VirtualCluster

    def update_usage(self) -> None:
        """Updates what policies know to the time of the wall clock."""

    async def set_all_ready(self) -> None:
        """Sets the Ready condition of all bound pods, as their kubelets would."""

    async def replace_evicted(self) -> None:
        """Replaces each evicted pod as its controller would; sets the replacement ready once it is bound."""


class RunExtension:
    """Hooks of a domain into one run of recorded services. By default each does nothing."""

    def configured(self, configuration: Configuration) -> Configuration:
        """Returns the configuration with which the program is built."""
        return configuration

    def begin(self, run: ServicesRun) -> None:
        """Called once, when the program is built and not yet started."""

    def on_time(self, epoch_s: float) -> None:
        """Called when the time has advanced and before pods are created: at the start and at each event."""

    def timed_steps(self) -> Sequence[TimedStep]:
        """Returns what the run does in addition to the scenario's events; at the same time, events come first."""
        return ()

    def report(self) -> RunReport:
        """Called after the run."""
        return RunReport({})


RunExtensions = Sequence[Callable[[Policy], RunExtension]]
"""Per domain, the function that makes the hooks of one run."""


def no_notes(scenario: Scenario) -> Sequence[str]:
    """Returns no notes."""
    return ()


class Contribution(msgspec.Struct, frozen=True):
    """What one domain adds."""

    policies: Mapping[str, Mapping[str, Any]] = {}
    """Name -> profile, as in a configuration file."""
    default_policies: tuple[str, ...] = ()
    """Those of them that a scenario of recorded services compares if it names no policies."""
    policy_sections: Mapping[str, PolicySection] = {}
    """Field of the policy entry, in snake case -> section."""
    extension: Callable[[Scenario], Callable[[Policy], RunExtension]] | None = None
    """Called once per process and scenario; the function that it returns is called once per run."""
    notes: Callable[[Scenario], Sequence[str]] = no_notes
    """Remarks on the scenario for the report."""
    workloads: Mapping[str, Workload] = {}
    """Key of the scenario file that selects the workload -> workload."""


def contributions() -> tuple[Contribution, ...]:
    """Returns the contributions of the built-in domains."""
    found = [resolve_name(where) for where in importlib.import_module("domains").SIMULATIONS.values()]
    assert all(isinstance(one, Contribution) for one in found)
    return tuple(found)


def run_extensions(scenario: Scenario) -> RunExtensions:
    """Returns the hooks of all domains for the runs of a scenario in this process."""
    return tuple(one.extension(scenario) for one in contributions() if one.extension is not None)
