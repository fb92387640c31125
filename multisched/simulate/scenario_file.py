"""Reads the sections of a scenario of recorded services, and all files that they name."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from msgspec.structs import replace

from multisched.config.document import ConfigError, Document, Problem
from multisched.config.document import Path as Place
from multisched.config.structure import nearest
from multisched.model.quantity import parse_milli
from multisched.model.selectors import is_qualified_name
from multisched.simulate.contribution import contributions
from multisched.simulate.policies import sections
from multisched.simulate.recorded_services import RecordedServices
from multisched.simulate.scenario import CAPACITY_ANNOTATION, Event, NodeSpec, Policy, Scenario, Service
from multisched.simulate.scenario_schema import NODES_MAX, NodeTemplate, ScenarioFile
from multisched.simulate.scenario_time import DAY_S, ScenarioTime, format_time
from multisched.simulate.services_file import read_services
from multisched.simulate.usage_table import UsageTable, filled, read_usage

PODS_MAX = 100_000
PODS_DEFAULT = "110"
NAMES_SHOWN = 5


def read_recorded(document: Document, file: ScenarioFile, policies: tuple[Policy, ...], path: Path) -> RecordedServices:
    """Reads the files that a validated scenario of recorded services names. Raises ConfigError."""
    return RecordedServices(_Resolver(document, file, policies, path).scenario())


class _Resolver:
    """Resolves one scenario file. Adds problems to the document, and notes for the report to `_notes`."""

    def __init__(self, document: Document, file: ScenarioFile, policies: tuple[Policy, ...], path: Path) -> None:
        self._document = document
        self._file = file
        self._policies = policies
        self._path = path
        self._notes: list[str] = []

    def scenario(self) -> Scenario:
        file, folder = self._file, self._path.parent
        services = self._services(folder)
        problems: list[Problem] = []
        usage = read_usage([folder / name for name in file.usage.files], problems)
        self._document.problems += problems
        if usage is None or problems:
            self._events(services, None)
            raise ConfigError(self._document.problems)
        self._check_dimensions(usage)
        nodes = self._nodes(usage)
        events = self._events(services, usage)
        known_s, from_s, to_s = self._periods(usage)
        series = self._series(services, events, usage, from_s, to_s)
        self._fail()
        create_s = self._create_s(usage, services, series, nodes, known_s)
        scenario = Scenario(
            file.name or self._path.stem,
            usage,
            tuple(services),
            tuple(nodes),
            tuple(events),
            self._policies,
            file.seeds,
            file.create.order,
            create_s,
            known_s,
            from_s,
            to_s,
            series,
        )
        self._check_order(scenario)
        self._check_sections(scenario)
        self._fail()
        self._note_gaps(scenario)
        for contribution in contributions():
            self._notes += contribution.notes(scenario)
        return replace(scenario, notes=tuple(self._notes))

    def _fail(self) -> None:
        if self._document.problems:
            raise ConfigError(self._document.problems)

    # -- fields ----------------------------------------------------------------------------------------------------

    def _services(self, folder: Path) -> list[Service]:
        problems: list[Problem] = []
        named = self._file.services
        found = read_services(folder / named.file, problems) if named.file is not None else []
        self._document.problems += problems
        seen = {service.name for service in found}
        if len(seen) < len(found):
            names = [service.name for service in found]
            twice = next(name for name in names if names.count(name) > 1)
            self._document.add(("services", "file"), f"service {twice!r} is listed twice in {named.file}; remove one")
        for index, entry in enumerate(named.entries):
            if entry.name in seen:
                at = ("services", "list", index, "name")
                self._document.add(at, f"service {entry.name!r} is already listed above; remove one")
            seen.add(entry.name)
            found.append(Service(entry.name, entry.replicas, dict(entry.requests)))
        return found

    def _check_dimensions(self, usage: UsageTable) -> None:
        """Adds a problem for each dimension whose name cannot be in the key of a node annotation."""
        for name in usage.dimensions:
            if not is_qualified_name(CAPACITY_ANNOTATION + name):
                fix = (
                    "rename it to at most 54 letters, digits, dashes, underscores and dots, with a letter or digit last"
                )
                text = f"the dimension {name[:80]!r} cannot be in the key of an annotation; {fix}"
                self._document.add(("usage", "files"), text)

    def _nodes(self, usage: UsageTable) -> list[NodeSpec]:
        found: list[NodeSpec] = []
        for index, template in enumerate(self._file.nodes):
            if any(template.name == other.name for other in self._file.nodes[:index]):
                self._document.add(("nodes", index, "name"), "is already used above; give each template a unique name")
            capacity = self._capacity(index, template, usage)
            allocatable = {"pods": PODS_DEFAULT, **template.allocatable}
            names = (f"{template.name}-{number}" for number in range(template.count))
            found += [NodeSpec(name, allocatable, dict(template.labels), capacity) for name in names]
        if len(found) > NODES_MAX:
            self._document.add(("nodes",), f"{len(found)} nodes; at most {NODES_MAX} are simulated")
        return found

    def _capacity(self, index: int, template: NodeTemplate, usage: UsageTable) -> tuple[float, ...]:
        for name in template.capacity:
            if name not in usage.dimensions:
                text = f"the usage has no dimension {name!r}; it has {', '.join(usage.dimensions)}"
                at = ("nodes", index, "capacity", name)
                self._document.add(at, text, suggestion=nearest(name, usage.dimensions), of_key=True)
        found = []
        for name in usage.dimensions:
            amount = template.capacity.get(name) or template.allocatable.get(name)
            if amount is None:
                fix = f"write capacity: {{{name}: …}}, the amount that the pods of one node may use"
                self._document.add(("nodes", index, "capacity"), f"no capacity for dimension {name!r}; {fix}")
            else:
                found.append(parse_milli(amount) / 1000)
        return tuple(found)

    def _events(self, services: list[Service], usage: UsageTable | None) -> list[Event]:
        at = {service.name: number for number, service in enumerate(services)}
        found = []
        for index, event in enumerate(self._file.events):
            for place, name in enumerate(event.release):
                if name != "*":
                    self._check_service(("events", index, "release", place), name, at)
            for name in event.scale:
                self._check_service(("events", index, "scale", name), name, at)
            if usage is None:
                continue
            released = at if "*" in event.release else [name for name in event.release if name in at]
            scale = {at[name]: replicas for name, replicas in event.scale.items() if name in at}
            found.append(Event(event.at.begin_s(usage.first_day_s), tuple(sorted(at[n] for n in released)), scale))
        return sorted(found, key=lambda event: event.at_s)

    def _check_service(self, path: Place, name: str, known: Mapping[str, int]) -> None:
        if name not in known:
            self._document.add(path, f"no service is called {name!r}", suggestion=nearest(name, known), of_key=True)

    # -- time ------------------------------------------------------------------------------------------------------

    def _periods(self, usage: UsageTable) -> tuple[int, int, int]:
        file, first = self._file, usage.first_day_s
        span = f"the usage goes from {format_time(usage.start_s)} to {format_time(usage.end_s)}"
        known_s = file.known.until.end_s(first)
        from_s, to_s = file.judged.begin.begin_s(first), file.judged.end.end_s(first)
        if not usage.start_s < known_s <= usage.end_s:
            self._document.add(("known", "until"), f"{format_time(known_s)}: {span}; write a moment within it")
        elif known_s > from_s:
            text = f"{format_time(known_s)} is after {format_time(from_s)}, when judging begins: policies would know the future"
            self._document.add(("known", "until"), f"{text}; write an earlier moment")
        if to_s <= from_s:
            text = f"ends at {format_time(to_s)}, which is not after from ({format_time(from_s)})"
            self._document.add(("judged", "to"), f"{text}; write a later day")
        elif not usage.start_s <= from_s < to_s <= usage.end_s:
            self._document.add(
                ("judged",), f"{format_time(from_s)} to {format_time(to_s)}: {span}; write days within it"
            )
        elif from_s % DAY_S or to_s % DAY_S:
            self._document.add(("judged",), "whole days are judged; write days without times")
        return known_s, from_s, to_s

    def _create_s(
        self,
        usage: UsageTable,
        services: list[Service],
        series: tuple[tuple[int, ...], ...],
        nodes: list[NodeSpec],
        known_s: int,
    ) -> int:
        moment = self._file.create.at
        if isinstance(moment, ScenarioTime):
            return moment.begin_s(usage.first_day_s)
        end = usage.step_at(known_s)
        begin = max(0, end - DAY_S // usage.step_s)
        running = [own[replica] for s, own in zip(services, series, strict=True) for replica in range(s.replicas)]
        values, _ = filled(usage.values[:, :, begin:end])
        use = np.nansum(values[running], axis=0) / np.array([node.capacity for node in nodes]).sum(0)[:, None]
        return usage.start_s + (begin + int(use.sum(0).argmin())) * usage.step_s

    def _check_order(self, scenario: Scenario) -> None:
        if not scenario.usage.start_s <= scenario.create_s <= scenario.judged_from_s:
            text = f"{format_time(scenario.create_s)} is not between the first sample and the first judged day"
            self._document.add(("create", "at"), f"{text}; write a moment there, or trough")
        for index, event in enumerate(self._file.events):
            at_s = event.at.begin_s(scenario.usage.first_day_s)
            if not scenario.create_s < at_s < scenario.judged_to_s:
                text = f"{format_time(at_s)} is not between the creation and the last judged day"
                self._document.add(("events", index, "at"), f"{text}; write a moment there")

    def _check_sections(self, scenario: Scenario) -> None:
        added = sections()
        for index, policy in enumerate(scenario.policies):
            for name, value in policy.sections.items():
                added[name].check(self._document, ("policies", index, name), value, scenario)

    # -- usage -----------------------------------------------------------------------------------------------------

    def _series(
        self, services: list[Service], events: list[Event], usage: UsageTable, from_s: int, to_s: int
    ) -> tuple[tuple[int, ...], ...]:
        of_service = {name: number for number, name in enumerate(usage.services)}
        of_pod = {name: len(of_service) + number for number, name in enumerate(usage.pods)}
        most = {number: service.replicas for number, service in enumerate(services)}
        for event in events:
            most |= {number: max(most[number], replicas) for number, replicas in event.scale.items()}
        if sum(most.values()) > PODS_MAX:
            self._document.add(("services",), f"{sum(most.values())} replicas; at most {PODS_MAX} are simulated")
            return ()
        begin, end = usage.step_at(from_s), usage.step_at(to_s)
        found = []
        for number, service in enumerate(services):
            own = [_series_of(service, replica, of_service, of_pod) for replica in range(most[number])]
            if None in own:
                pod = f"{service.name}-{own.index(None)}"
                text = f"the usage has neither service {service.name!r} nor pod {pod!r}"
                near = nearest(service.name, of_service)
                self._document.add(("services",), f"{text}; add its samples", suggestion=near)
                continue
            used = tuple(series for series in own if series is not None)
            for series in dict.fromkeys(used):
                lacking = usage.missing(series, begin, end) if begin < end else ""
                if lacking:
                    name = (*usage.services, *usage.pods)[series]
                    text = f"{name!r} has no sample of {lacking!r} in the judged days; write zeros if it uses none"
                    self._document.add(("usage", "files"), text)
            found.append(used)
        self._note_unused(usage, {series for own in found for series in own})
        return tuple(found)

    def _note_unused(self, usage: UsageTable, used: set[int]) -> None:
        names = [name for series, name in enumerate((*usage.services, *usage.pods)) if series not in used]
        if names:
            more = ", …" if len(names) > NAMES_SHOWN else ""
            self._notes.append(f"usage of {len(names)} unused names: {', '.join(names[:NAMES_SHOWN])}{more}")

    def _note_gaps(self, scenario: Scenario) -> None:
        """Adds notes on gaps. Gaps in the judged days are filled by linear interpolation; gaps in the history stay."""
        used = sorted({series for own in scenario.series for series in own})
        usage = scenario.usage
        begin, end = usage.step_at(scenario.judged_from_s), usage.step_at(scenario.judged_to_s)
        _, made = filled(usage.values[used, :, begin:end])
        if made:
            self._notes.append(f"{made} missing samples of the judged days were filled by linear interpolation")
        history = np.isnan(usage.values[:, :, : usage.step_at(scenario.known_until_s)])
        holes = int(history[used].sum())
        if holes:
            self._notes.append(f"{holes} samples of the history are missing; policies see the gaps")


def _series_of(service: Service, replica: int, of_service: dict[str, int], of_pod: dict[str, int]) -> int | None:
    """Returns the pod's own series, else the service's. The pod of a service with one replica may have the service's name."""
    own = of_pod.get(f"{service.name}-{replica}")
    if own is None and service.replicas <= 1:
        own = of_pod.get(service.name)
    return of_service.get(service.name) if own is None else own
