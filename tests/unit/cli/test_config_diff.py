"""What `config diff` says: which settings differ, when they apply, and how to restart for those that wait."""

from __future__ import annotations

import pytest

from multisched.cli.config_diff import lines
from multisched.config.changes import Change
from multisched.observe.configuration_view import ConfigurationView

COMMAND = "kubectl -n ours rollout restart deployment/ours"
AT_ONCE = Change("logging.level", "info", "debug")
WAITING = Change("server.port", "10260", "1", "the server is set up at startup")


@pytest.mark.parametrize(
    ("found", "last"),
    [([AT_ONCE], "at once"), ([AT_ONCE, WAITING], f"restart it with: {COMMAND}"), ([], "no difference")],
)
def test_restart_command_is_named_if_a_change_needs_one(found: list[Change], last: str) -> None:
    view = ConfigurationView({}, "/etc/multisched.yaml", restart_command=COMMAND)
    shown = list(lines(view, found, (), is_own_file=True, is_wide=False))
    assert shown[0] == "the program follows /etc/multisched.yaml"
    assert shown[-1].endswith(last)


def test_unknown_restart_command_is_omitted() -> None:
    shown = list(lines(ConfigurationView({}), [WAITING], (), is_own_file=False, is_wide=False))
    assert "after a restart: the server is set up at startup" in shown[-1]


REJECTED = ConfigurationView({}, "/etc/m.yaml", since_s=0.0, problems=("/etc/m.yaml:3:1: domians: unknown key",))


def test_rejected_file_is_named_without_its_former_content() -> None:
    shown = list(lines(REJECTED, [WAITING], REJECTED.problems, is_own_file=True, is_wide=False))
    assert shown[:3] == [
        "/etc/m.yaml was rejected; its previous content is in force, since 1970-01-01T00:00:00+00:00",
        "/etc/m.yaml:3:1: domians: unknown key",
        "of its previous content, this waits for a restart:",
    ]
    assert shown[3].splitlines()[0].split() == ["SETTING", "IN", "FORCE", "PREVIOUS", "VALUE", "APPLIES"]


def test_other_file_is_compared_with_the_configuration_in_force() -> None:
    shown = list(lines(REJECTED, [], (), is_own_file=False, is_wide=False))
    said = "/etc/m.yaml, which the program follows, was rejected; its previous content is in force, since 1970-01-01T"
    assert shown[0].startswith(said)
    assert shown[1:] == ["no difference"]


LONG = "{" + ", ".join(f"k{number}: {number}" for number in range(100)) + "}"


@pytest.mark.parametrize(
    ("after", "shown_before", "shown_after"),
    [
        (LONG.replace("k50: 50", "k50: no"), "… k49: 49, k50: 50, k51: 51", "… k49: 49, k50: no, k51: 51"),
        ("", "{k0: 0, k1: 1, ", "-"),
    ],
)
def test_long_values_are_shortened_around_the_first_difference(after: str, shown_before: str, shown_after: str) -> None:
    change = Change("domains.web.profile", LONG, after, "")
    (_, row) = "\n".join(lines(ConfigurationView({}), [change], (), is_own_file=False, is_wide=False)).splitlines()
    assert shown_before in row
    assert shown_after in row
    assert len(row) < 200
    (_, whole) = "\n".join(lines(ConfigurationView({}), [change], (), is_own_file=False, is_wide=True)).splitlines()
    assert LONG in whole
