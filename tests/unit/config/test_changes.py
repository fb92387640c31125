"""What differs between two configurations, and what of it waits for a restart."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from multisched.config import loading
from multisched.config.changes import HIDDEN, applicable, changes, difference, flatten, restart_reason
from multisched.config.document import ConfigError
from multisched.config.schema import Configuration
from multisched.config.watched_file import WatchedFile

HEAD = "apiVersion: multisched.io/v1\nkind: MultischedConfiguration\n"


def parsed(text: str) -> Configuration:
    return loading.parse(HEAD + text, "test")


def differences(before: str, after: str) -> list[tuple[str, str, str, bool]]:
    found = changes(flatten(parsed(before)), flatten(parsed(after)))
    assert difference(parsed(before), parsed(after)) == found, "what is alike is left out, and nothing else"
    return [(one.path, one.before, one.after, bool(one.restart)) for one in found]


@dataclasses.dataclass(frozen=True)
class Case:
    before: str
    after: str
    found: list[tuple[str, str, str, bool]]


ONE = "domains: [{name: forecast}]"


@pytest.mark.parametrize(
    "case",
    [
        Case(ONE, "domains:\n- name: forecast # as before", []),
        Case(
            ONE,
            "domains: [{name: forecast, queue: {maxBackoff: 1m}}]",
            [("domains[forecast].queue.maxBackoff", "10s", "1m", False)],
        ),
        Case(
            ONE,
            "domains: [{name: forecast, profile: {plugins: {enabled: [{name: PeakForecast, weight: 3}]}}}]",
            [("domains[forecast].profile.plugins.enabled[PeakForecast].weight", "10", "3", False)],
        ),
        Case(
            ONE,
            "domains: [{name: forecast, concurrency: {bindWorkers: 8}}]\nserver: {port: 1}",
            [
                ("domains[forecast].concurrency.bindWorkers.max", "512", "8", False),
                ("server.port", "10260", "1", True),
            ],
        ),
        Case(ONE, ONE + "\nlogging: {level: debug}", [("logging.level", "info", "debug", False)]),
        Case(ONE, "domains: [{name: forecast}, {name: gpu}]", [("domains", "[forecast]", "[forecast, gpu]", True)]),
        Case("domains: [{name: forecast}, {name: gpu}]", ONE, [("domains", "[forecast, gpu]", "[forecast]", True)]),
    ],
)
def test_changed_settings_are_named_with_both_values(case: Case) -> None:
    assert differences(case.before, case.after) == case.found


def test_removed_or_moved_plugin_is_a_profile_change() -> None:
    (order, *rest) = differences(ONE, "domains: [{name: forecast, profile: {plugins: {disabled: [ImageLocality]}}}]")
    assert order[0] == "domains[forecast].profile.plugins.enabled"
    assert "ImageLocality" in order[1]
    assert "ImageLocality" not in order[2]
    assert {path for path, *_ in rest} == {
        "domains[forecast].profile.plugins.enabled[ImageLocality].name",
        "domains[forecast].profile.plugins.enabled[ImageLocality].weight",
    }


def test_secrets_are_hidden_in_changes() -> None:
    secret = "c2VjcmV0"
    text = f"""domains:
- name: forecast
  extenders:
  - urlPrefix: https://127.0.0.1:1
    filterVerb: filter
    tlsConfig: {{certData: {secret}, keyData: {secret}}}
"""
    flat = flatten(parsed(text))
    assert flat["domains[forecast].extenders[0].tlsConfig.keyData"] == HIDDEN
    sources = "[{type: prometheus, url: 'http://127.0.0.1:1', headers: {X-Key: hush}}]"
    measured = "[{name: cpu, ready: cadvisor-cpu}]"
    plugin = f"{{name: PeakForecast, args: {{history: {{sources: {sources}, dimensions: {measured}}}}}}}"
    flat = flatten(parsed(f"domains: [{{name: forecast, profile: {{plugins: {{enabled: [{plugin}]}}}}}}]"))
    assert "hush" not in str(flat)
    path = "domains[forecast].profile.plugins.enabled[PeakForecast].args.history.sources[0]"
    assert (flat[f"{path}.type"], flat[f"{path}.headers"]) == ("prometheus", HIDDEN)


def test_only_reloadable_settings_change() -> None:
    before = parsed("domains: [{name: forecast}, {name: gpu}]")
    wanted = parsed(
        "domains: [{name: job}, {name: forecast, queue: {maxBackoff: 1m}, schedulerNames: [x]}]\nserver: {port: 1}"
    )
    after = applicable(before, wanted)
    assert differences_of(before, after) == {"domains[forecast].queue.maxBackoff"}
    assert after.server == before.server


def differences_of(before: Configuration, after: Configuration) -> set[str]:
    return {one.path for one in changes(flatten(before), flatten(after))}


def test_every_setting_applies_at_once_or_has_a_restart_reason() -> None:
    """A change of it alone comes into force, or has a reason: nothing is silently left as it was."""
    flat = flatten(loading.default())
    hot = ("profile", "concurrency", "queue", "policy")
    for path in flat:
        part = path.partition("].")[2].partition(".")[0].partition("[")[0] if path.startswith("domains[") else path
        is_hot = part in hot or path == "logging.level"
        is_fixed = path in ("apiVersion", "kind") or path.endswith("].name")
        assert is_hot is not bool(restart_reason(path)) or is_fixed, path


def test_watched_file_is_compared_by_content_and_an_error_reported_once(tmp_path: Path) -> None:
    path = tmp_path / "multisched.yaml"
    path.write_text(HEAD)
    file = WatchedFile(path, HEAD)
    assert file.changed() is None
    path.write_text(HEAD + "logging: {level: debug}\n")
    found = file.changed()
    assert found is not None
    assert found.logging.level == "debug"
    assert file.changed() is None
    path.write_text(HEAD + "loging: {level: debug}\n")
    with pytest.raises(ConfigError, match="loging"):
        file.changed()
    assert file.changed() is None
    path.unlink()
    assert file.changed() is None
    path.write_text(HEAD + "logging: {level: debug}\n")
    assert file.changed() is not None


def test_missing_file_is_reported_once_and_its_return_is_a_change(tmp_path: Path) -> None:
    path = tmp_path / "multisched.yaml"
    path.write_text(HEAD)
    file = WatchedFile(path, HEAD)
    assert file.changed() is None
    path.unlink()
    assert file.changed() is None, "as editors do when they save"
    with pytest.raises(ConfigError, match=":1:1: the file does not exist; restore it"):
        file.changed()
    assert file.changed() is None
    path.write_text(HEAD)
    assert file.changed() is not None, "so that it counts as good again"
    assert file.changed() is None


def test_swapped_configmap_link_is_detected(tmp_path: Path) -> None:
    for name, text in (("one", HEAD), ("two", HEAD + "logging: {level: error}\n")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "multisched.yaml").write_text(text)
    data, path = tmp_path / "..data", tmp_path / "multisched.yaml"
    data.symlink_to("one")
    path.symlink_to("..data/multisched.yaml")
    file = WatchedFile(path, HEAD)
    assert file.changed() is None
    (tmp_path / "..data_tmp").symlink_to("two")
    (tmp_path / "..data_tmp").rename(data)
    found = file.changed()
    assert found is not None
    assert found.logging.level == "error"
