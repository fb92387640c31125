"""Where commands find the kubeconfig of a demo: only where the user has none, and only while one runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from multisched.cli.cluster_options import kubeconfig_of
from multisched.client import auth
from multisched.demo.demo_kubeconfig import NAME, demo_kubeconfig, found_by_commands
from multisched.observe.loopback import token_folder


@pytest.fixture
def kubeconfig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file of a demo, and a user without any other."""
    for name in ("KUBECONFIG", "XDG_RUNTIME_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(auth, "SERVICE_ACCOUNT", tmp_path / "none")
    file = tmp_path / "kubeconfig"
    file.write_text("{}")
    return file


def environment(home: Path) -> dict[str, str]:
    return {"HOME": str(home)}


def test_kubeconfig_is_found_while_the_demo_runs(kubeconfig: Path, tmp_path: Path) -> None:
    with found_by_commands(kubeconfig, environment(tmp_path)):
        assert demo_kubeconfig(environment(tmp_path)) == kubeconfig
    assert demo_kubeconfig(environment(tmp_path)) is None
    assert list(token_folder(environment(tmp_path)).iterdir()) == []


def test_latest_demo_is_found_after_an_earlier_one_ends(kubeconfig: Path, tmp_path: Path) -> None:
    later = tmp_path / "later"
    later.write_text("{}")
    first = found_by_commands(kubeconfig, environment(tmp_path))
    first.__enter__()
    with found_by_commands(later, environment(tmp_path)):
        first.__exit__(None, None, None)
        assert demo_kubeconfig(environment(tmp_path)) == later


def test_deleted_kubeconfig_is_not_found(kubeconfig: Path, tmp_path: Path) -> None:
    with found_by_commands(kubeconfig, environment(tmp_path)):
        kubeconfig.unlink()
        assert demo_kubeconfig(environment(tmp_path)) is None


def test_unwritable_cache_directory_gives_no_kubeconfig(kubeconfig: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with found_by_commands(kubeconfig, environment(tmp_path / "file")):
        assert demo_kubeconfig(environment(tmp_path / "file")) is None


def test_user_without_a_kubeconfig_gets_the_one_of_the_demo_and_a_notice(
    kubeconfig: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert kubeconfig_of(None, None) is None
    with found_by_commands(kubeconfig, environment(tmp_path)):
        assert kubeconfig_of(None, None) == kubeconfig
    assert capsys.readouterr().err == (
        f"multisched: you have no kubeconfig; using the cluster of the demo, {kubeconfig}\n"
    )


def test_user_with_a_kubeconfig_never_gets_the_one_of_the_demo(
    kubeconfig: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with found_by_commands(kubeconfig, environment(tmp_path)):
        assert kubeconfig_of(Path("given"), None) == Path("given")
        assert kubeconfig_of(None, "context") is None
        monkeypatch.setenv("KUBECONFIG", "elsewhere")
        assert kubeconfig_of(None, None) is None
        monkeypatch.delenv("KUBECONFIG")
        (tmp_path / ".kube").mkdir()
        (tmp_path / ".kube" / "config").write_text("{}")
        assert kubeconfig_of(None, None) is None
    assert not (tmp_path / ".cache" / "multisched" / NAME).exists()
