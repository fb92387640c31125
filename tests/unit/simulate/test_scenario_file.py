"""Scenario files: what they say, and that everything wrong in them is told at once, with file, line, field and fix."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from domains.forecast.simulation.fits import history_of
from domains.forecast.simulation.repair_section import repair_windows
from multisched.simulate.scenario_time import format_time
from tests.unit.simulate.scenarios import at, fields, load_scenario, refusals, usage_lines, write

NODE = {"name": "node", "count": 4, "allocatable": {"cpu": 4, "memory": "8Gi"}}
SHORT = "the history has 2.0 days, less than a week; PeakForecast cannot distinguish weekdays, and with less than two days not hours either"

NIGHT: dict[str, Any] = {"from": "01:00", "to": "05:00"}


def repaired(profile: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    """One policy, with a section `repair` that is good but for the changes."""
    section = {"windows": [NIGHT], "movesPer100Replicas": 50, **changes}
    return {"policies": [{"name": "mended", "profile": profile or {"base": "forecast"}, "repair": section}]}


def test_scenario_has_the_content_of_its_files(tmp_path: Path) -> None:
    scenario = load_scenario(write(tmp_path))
    assert [(s.name, s.replicas, dict(s.requests)) for s in scenario.services] == [
        ("web", 4, {"cpu": "1"}),
        ("db", 2, {}),
    ]
    assert [node.name for node in scenario.nodes] == ["node-0", "node-1", "node-2", "node-3"]
    assert scenario.usage.dimensions == ("cpu", "log")
    np.testing.assert_array_equal(scenario.capacities(), [[4.0, 40.0]] * 4)
    assert [policy.name for policy in scenario.policies] == ["least-allocated", "realtime", "peak-forecast"]
    assert scenario.seeds == (0, 1)
    assert format_time(scenario.known_until_s) == "2026-01-07 00:00"
    assert (format_time(scenario.judged_from_s), format_time(scenario.judged_to_s)) == (
        "2026-01-07 00:00",
        "2026-01-09 00:00",
    )
    assert scenario.notes == (SHORT,)


def test_services_may_come_from_a_file_with_their_requests(tmp_path: Path) -> None:
    text = "service,replicas,cpu_request,memory_request_gib,nvidia.com/gpu_request\nweb,4,0.5,2.0,\ndb,2,2,8,1\n"
    (tmp_path / "services.csv").write_text(text)
    scenario = load_scenario(write(tmp_path, services={"file": "services.csv"}))
    assert [(s.name, s.replicas, dict(s.requests)) for s in scenario.services] == [
        ("web", 4, {"cpu": "0.5", "memory": "2.0Gi"}),
        ("db", 2, {"cpu": "2", "memory": "8Gi", "nvidia.com/gpu": "1"}),
    ]


def test_services_are_created_by_default_in_the_quietest_step_of_the_last_day(tmp_path: Path) -> None:
    lines = [(*line[:3], "0.1" if line[0] == at(6) else line[3]) for line in usage_lines()]
    assert format_time(load_scenario(write(tmp_path, lines=lines)).create_s) == "2026-01-06 12:00"
    told = load_scenario(write(tmp_path, lines=lines, create={"at": "day 2 18:00"}))
    assert format_time(told.create_s) == "2026-01-06 18:00"


def test_series_of_a_pod_takes_precedence_over_that_of_its_service(tmp_path: Path) -> None:
    lines = [(t, "", "web-1" if s == "web" else "", d, v) for t, s, d, v in usage_lines() if s == "web"]
    lines += [(t, s, "", d, v) for t, s, d, v in usage_lines()]
    path = write(tmp_path)
    header = "timestamp,service,pod,dimension,value"
    (tmp_path / "usage.csv").write_text("\n".join([header, *(",".join(line) for line in lines)]))
    scenario = load_scenario(path)
    assert (scenario.usage.services, scenario.usage.pods) == (("db", "web"), ("web-1",))
    assert scenario.series == ((1, 2, 1, 1), (0, 0))


def test_history_is_the_usage_of_the_service_or_the_mean_of_its_pods(tmp_path: Path) -> None:
    scenario = load_scenario(write(tmp_path))
    own = [float(value) for _, service, dimension, value in usage_lines() if (service, dimension) == ("db", "log")]
    np.testing.assert_array_equal(history_of(scenario, 8)[1, 1], own[:8])


def test_events_are_sorted_by_time_and_star_means_all(tmp_path: Path) -> None:
    events = [{"at": "day 4", "scale": {"web": 6}}, {"at": "day 3 04:00", "release": ["*"]}]
    scenario = load_scenario(write(tmp_path, events=events))
    assert [(format_time(e.at_s), e.release, dict(e.scale)) for e in scenario.events] == [
        ("2026-01-07 04:00", (0, 1), {}),
        ("2026-01-08 00:00", (), {0: 6}),
    ]
    assert [len(own) for own in scenario.series] == [6, 2], "as many replicas as there will ever be"


def test_interpolated_and_unused_samples_are_noted(tmp_path: Path) -> None:
    lines = [line for line in usage_lines(("web", "db", "gone")) if line[0] not in (at(3), at(12)) or line[1] != "web"]
    assert load_scenario(write(tmp_path, lines=lines)).notes == (
        "usage of 1 unused names: gone",
        "2 missing samples of the judged days were filled by linear interpolation",
        "2 samples of the history are missing; policies see the gaps",
        SHORT,
    )


def test_service_without_history_is_reported(tmp_path: Path) -> None:
    lines = [line for line in usage_lines() if line[1] != "db" or line[0] >= at(8)]
    assert load_scenario(write(tmp_path, lines=lines)).notes == (
        "16 samples of the history are missing; policies see the gaps",
        "1 names have no history: db; PeakForecast uses its fallbacks for them, last their requests",
        SHORT,
    )


def test_only_repair_windows_that_open_on_judged_days_count(tmp_path: Path) -> None:
    """Days 3 and 4 are judged; a window that opened the evening before is not theirs."""
    windows = [NIGHT, {"from": "22:00", "to": "03:00"}]
    scenario = load_scenario(write(tmp_path, **repaired(windows=windows)))
    (policy,) = scenario.policies
    repair = policy.sections["repair"]
    assert repair.moves(scenario.replicas) == (3, 3)
    assert [(format_time(one.opens_s), format_time(one.closes_s)) for one in repair_windows(repair, scenario)] == [
        ("2026-01-07 01:00", "2026-01-07 05:00"),
        ("2026-01-07 22:00", "2026-01-08 03:00"),
        ("2026-01-08 01:00", "2026-01-08 05:00"),
        ("2026-01-08 22:00", "2026-01-09 03:00"),
    ]


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"kind": "Scenery"}, "kind: 'Scenery' is not known here; write Scenario"),
        ({"known": None}, "known: is missing"),
        ({"polices": ["realtime"]}, "polices: unknown key (did you mean policies?)"),
        (
            {"policies": ["peak-forcast"]},
            "policies[0]: no policy is called 'peak-forcast'; write one of least-allocated,",
        ),
        ({"policies": ["realtime", "realtime"]}, "policies[1]: policy 'realtime' is already listed above"),
        ({"policies": [{"name": "a", "configuration": "no.yaml"}]}, "no.yaml:1:1: cannot be read"),
        ({"policies": [{"name": "a", "domain": "gpu"}]}, "policies[0]: a domain needs a configuration"),
        (
            {"policies": [{"name": "a", "profile": {"plugins": {"enabled": [{"name": "PeakForcast"}]}}}]},
            "policies[0].profile.plugins.enabled[0].name: 'PeakForcast' is not a plugin (did you mean PeakForecast?)",
        ),
        (repaired(windows=[{"from": "1:00"}]), "policies[0].repair: policies[0].repair.windows[0].to: missing; write"),
        (repaired(windows=[{**NIGHT, "days": ["mon"]}]), "policies[0].repair.windows: none opens on a judged day"),
        (
            repaired(movesPer100Replicas=1),
            "policies[0].repair.movesPer100Replicas: allows no move of 6 replicas; write",
        ),
        (
            repaired(movesPerWindow=9),
            "policies[0].repair.movesPerWindow: 9 are more than the 3 that movesPer100Replicas",
        ),
        (repaired(movesPerWeek=9), "policies[0].repair.movesPerWeek: unknown key (did you mean movesPerWindow?)"),
        (repaired(thresholdPercent=0), "policies[0].repair: policies[0].repair.thresholdPercent: 0 is not a threshold"),
        (
            repaired(thresholdPercent={"logs": 90}),
            "policies[0].repair.thresholdPercent.logs: the usage has no dimension 'logs'; it has cpu, log (did you mean log?)",
        ),
        (repaired({"base": "default"}), "policies[0].repair: policy 'mended' does not run PeakForecast, which repairs"),
        ({"seeds": 0}, "seeds: write a number of seeds from 1 to 1000"),
        ({"seeds": [-1]}, "seeds[0]: must be greater than or equal to 0, got -1"),
        ({"seeds": [2**32]}, "seeds[0]: must be less than or equal to 4294967295, got 4294967296"),
        ({"seeds": [1, 1]}, "seeds: names a seed twice"),
        (
            {"nodes": [{**NODE, "capacity": {"logs": 4, "log": 4}}]},
            "nodes[0].capacity.logs: the usage has no dimension",
        ),
        ({"nodes": [NODE]}, "nodes[0].capacity: no capacity for dimension 'log'; write capacity: {log: …}"),
        ({"nodes": [{**NODE, "capacity": {"log": 0}}]}, "nodes[0].capacity.log: must be above zero"),
        ({"nodes": [{**NODE, "capacity": {"log": "4 MB"}}]}, "nodes[0].capacity.log: "),
        ({"known": {"until": "day 3"}}, "known.until: 2026-01-08 00:00 is after 2026-01-07 00:00, when judging begins"),
        ({"known": {"until": "day 9"}}, "known.until: 2026-01-14 00:00: the usage goes from 2026-01-05 00:00 to"),
        ({"judged": {"from": "day 3", "to": "day 5"}}, "judged: 2026-01-07 00:00 to 2026-01-10 00:00: the usage goes"),
        ({"judged": {"from": "day 3 06:00", "to": "day 4"}}, "judged: whole days are judged"),
        (
            {"judged": {"from": "day 3", "to": "day 2"}},
            "judged.to: ends at 2026-01-07 00:00, which is not after from (2026-01-07 00:00); write a later day",
        ),
        ({"judged": {"from": "now", "to": "day 4"}}, "judged.from: 'now' is not a moment; write for instance"),
        ({"create": {"at": "day 4"}}, "create.at: 2026-01-08 00:00 is not between the first sample and"),
        (
            {"events": [{"at": "day 1", "release": ["web"]}]},
            "events[0].at: 2026-01-05 00:00 is not between the creation",
        ),
        ({"events": [{"at": "day 3"}]}, "events[0]: neither release nor scale is set; write release"),
        (
            {"events": [{"at": "day 3", "release": ["wep"]}]},
            "events[0].release[0]: no service is called 'wep' (did you",
        ),
        ({"events": [{"at": "day 3", "scale": {"dbs": 1}}]}, "events[0].scale.dbs: no service is called 'dbs'"),
        (
            {"services": {"list": [{"name": "api", "replicas": 1}]}},
            "services: the usage has neither service 'api'",
        ),
        (
            {"services": {"list": [{"name": "web", "replicas": n} for n in (1, 2)]}},
            "services.list[1].name: service 'web' is already",
        ),
        (
            {"nodes": [{**NODE, "capacity": {"log": 4}, "labels": {"bad key!": "x"}}]},
            "nodes[0].labels.bad key!: the key 'bad key!' is not a label key; write",
        ),
        (
            {"nodes": [{**NODE, "capacity": {"log": 4}, "labels": {"zone": "x y"}}]},
            "nodes[0].labels.zone: 'x y' is not a label value; write at most 63",
        ),
        (
            {"nodes": [{**NODE, "capacity": {"log": 4}, "allocatable": {"cpu": 4, "foo bar": 1}}]},
            "nodes[0].allocatable.foo bar: the key 'foo bar' is not a resource name; write",
        ),
        (
            {"services": {"list": [{"name": "web", "replicas": 1, "requests": {"foo bar": 1}}]}},
            "services.list[0].requests.foo bar: the key 'foo bar' is not a resource that pods can request; write",
        ),
        (
            {"services": {"list": [{"name": "web", "replicas": 1, "requests": {"gpu": 1}}]}},
            "services.list[0].requests.gpu: the key 'gpu' is not a resource that pods can request; write",
        ),
        (
            {"services": {"list": [{"name": "web", "replicas": 1, "requests": {"nvidia.com/gpu": "500m"}}]}},
            "services.list[0]: requests.nvidia.com/gpu: '500m' is not a whole number; only",
        ),
        ({"services": {"file": "no.csv"}}, "no.csv:1:1: cannot be read"),
        ({"usage": {"files": ["no.csv"]}}, "no.csv:1:1: cannot be read"),
        ({"usage": {"files": []}}, "usage.files: needs at least 1"),
    ],
)
def test_problem_is_reported_with_its_field_and_fix(tmp_path: Path, changes: dict[str, Any], problem: str) -> None:
    found = refusals(write(tmp_path, **changes))
    assert len(found) == 1, found
    assert problem in found[0]
    assert found[0].split(":")[1].isdecimal(), "the line"


def test_all_problems_are_reported_in_one_run(tmp_path: Path) -> None:
    (tmp_path / "services.csv").write_text("service,replicas,cpu_request\nweb,four,1\nDB,1,much\nweb,1\n")
    lines = [*usage_lines(), (at(1), "web", "cpu", "3Gi")]
    path = write(
        tmp_path,
        lines=lines,
        services={"file": "services.csv"},
        policies=["dice"],
        seeds=[3, 3],
        events=[{"at": "day 3", "release": ["search"]}],
    )
    found = refusals(path)
    lines_told = [sentence.split(":")[1] for sentence in found if sentence.startswith("services.csv")]
    assert lines_told == ["2", "3", "3", "4"]
    assert sum(sentence.startswith("usage.csv:66:1: value: '3Gi'") for sentence in found) == 1
    assert sum("events[0].release[0]" in sentence for sentence in found) == 1
    assert sum("policies[0]: no policy is called 'dice'" in sentence for sentence in found) == 1
    assert sum("seeds: names a seed twice" in sentence for sentence in found) == 1


def test_resources_in_a_services_file_are_validated(tmp_path: Path) -> None:
    (tmp_path / "services.csv").write_text("service,replicas,foo bar_request,nvidia.com/gpu_request\nweb,4,1,0.5\n")
    assert refusals(write(tmp_path, services={"file": "services.csv"})) == [
        (
            "services.csv:2:1: foo bar_request: 'foo bar' is not a resource that pods can request; write cpu, memory, "
            "ephemeral-storage, hugepages-SIZE or a name such as nvidia.com/gpu"
        ),
        "services.csv:2:1: nvidia.com/gpu_request: '0.5' is not a whole number; only cpu, memory and ephemeral-storage have fractions",
    ]


def test_a_dimension_must_fit_into_the_key_of_an_annotation(tmp_path: Path) -> None:
    """Capacities reach plugins as annotations of nodes."""
    lines = usage_lines(dimensions=("cpu", "disk io"))
    node = {**NODE, "capacity": {"disk io": 4}}
    (found,) = refusals(write(tmp_path, lines=lines, nodes=[node]))
    assert "usage.files: the dimension 'disk io' cannot be in the key of an annotation; rename it" in found


def test_series_without_samples_on_judged_days_is_refused(tmp_path: Path) -> None:
    lines = [line for line in usage_lines() if line[1:3] != ("db", "log") or line[0] < at(8)]
    (found,) = refusals(write(tmp_path, lines=lines))
    assert "'db' has no sample of 'log' in the judged days; write zeros if it uses none" in found


def test_policy_may_be_a_configuration_file_of_the_user(tmp_path: Path) -> None:
    head = "apiVersion: multisched.io/v1\nkind: MultischedConfiguration\ndomains:\n- {name: a}\n"
    (tmp_path / "own.yaml").write_text(
        head + "- {name: b, schedulerNames: [mine], nodes: {selector: {matchLabels: {x: y}}}}\n"
    )
    entry = {"name": "own", "configuration": "own.yaml", "domain": "b"}
    (policy,) = load_scenario(write(tmp_path, policies=[entry])).policies
    assert policy.scheduler_name == "mine"
    (found,) = refusals(write(tmp_path, policies=[{**entry, "domain": "c"}]))
    assert "policies[0].domain: own.yaml has no domain 'c'; write one of a, b" in found


def test_extenders_are_refused_since_virtual_time_cannot_wait_for_them(tmp_path: Path) -> None:
    head = "apiVersion: multisched.io/v1\nkind: MultischedConfiguration\ndomains:\n"
    extender = "{urlPrefix: http://127.0.0.1:1, filterVerb: filter}"
    (tmp_path / "own.yaml").write_text(f"{head}- name: a\n  extenders: [{extender}]\n")
    (found,) = refusals(write(tmp_path, policies=[{"name": "own", "configuration": "own.yaml"}]))
    assert "policies[0].configuration: domain a has HTTP extenders" in found


def test_unchanged_test_fields_are_valid(tmp_path: Path) -> None:
    assert not refusals(write(tmp_path, **fields()))
