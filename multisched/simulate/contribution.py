"""Contribution: a domain's additions to `multisched simulate`, which are policies, sections of the scenario file, hooks of a run, and
workloads.

A built-in domain names its `Contribution` in `domains.SIMULATIONS`, as it names its commands in `domains.COMMANDS`. It is imported when a
scenario is read. Nothing in `multisched` depends on a domain.

A workload defines which nodes and pods a scenario creates on the virtual cluster, when, and which figures it reports. The engine has one,
recorded services (`recorded_services`). A domain may add others, each with a key of the file that selects it.
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
    """The figures of one run, returned by the process that executed it."""

    @property
    def is_whole(self) -> bool:
        """Whether no plugin failed and, for recorded services, all pods were placed. If not, the command exits with code 1."""


class Simulation(Protocol):
    """A scenario that was read, with its workload. Sent to the processes that run it, so it must be picklable."""

    @property
    def policies(self) -> tuple[Policy, ...]:
        """The policies in the order of the report, with unique names."""

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seeds; each policy runs once with each."""

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
        """Returns the same simulation, but with outcomes that contain the events."""

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
    """An action of a run, executed when its wall clock has jumped to `at_s` (epoch seconds)."""

    at_s: float
    run: Callable[[], Awaitable[None]]


class RunReport(msgspec.Struct, frozen=True):
    """The part of a run's report that one domain adds to the figures of the workload."""

    fields: Mapping[str, Any]
    """JSON fields of the run; the same ones in every run of a scenario."""
    notes: tuple[str, ...] = ()
    """Notes for the table and the HTML page."""


class ServicesRun(Protocol):
    """The part of a run of recorded services that hooks may use."""

    cluster: VirtualCluster

    def update_usage(self) -> None:
        """Sets the usage that policies can read to that of the current wall clock time."""

    async def set_all_ready(self) -> None:
        """Sets the Ready condition of all bound pods, as their kubelets would."""

    async def replace_evicted(self) -> None:
        """Replaces each evicted pod as its controller would; sets the replacement ready once it is bound."""


class RunExtension:
    """Hooks of a domain in one run of recorded services. By default each does nothing."""

    def configured(self, configuration: Configuration) -> Configuration:
        """Returns the configuration with which the program is built."""
        return configuration

    def begin(self, run: ServicesRun) -> None:
        """Called once, after the program was built and before it starts."""

    def on_time(self, epoch_s: float) -> None:
        """Called when the time has advanced and before pods are created: at the start and at each event."""

    def timed_steps(self) -> Sequence[TimedStep]:
        """Returns actions in addition to the scenario's events. If times are equal, the event is first."""
        return ()

    def report(self) -> RunReport:
        """Returns the domain's part of the report; called after the run."""
        return RunReport({})


RunExtensions = Sequence[Callable[[Policy], RunExtension]]
"""Per domain, the function that makes the hooks of one run."""


def no_notes(scenario: Scenario) -> Sequence[str]:
    """Returns no notes."""
    return ()


class Contribution(msgspec.Struct, frozen=True):
    """The additions of one domain."""

    policies: Mapping[str, Mapping[str, Any]] = {}
    """Name -> profile, as in a configuration file."""
    default_policies: tuple[str, ...] = ()
    """The names in `policies` that a scenario of recorded services compares if it lists no policies."""
    policy_sections: Mapping[str, PolicySection] = {}
    """Field of the policy entry, in snake case -> section."""
    extension: Callable[[Scenario], Callable[[Policy], RunExtension]] | None = None
    """Called once per process and scenario; the function that it returns is called once per run."""
    notes: Callable[[Scenario], Sequence[str]] = no_notes
    """Returns notes on the scenario for the report."""
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
