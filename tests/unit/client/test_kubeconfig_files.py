"""KUBECONFIG that names several files: what is in them counts as one, the first file before the others."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from multisched.client.auth import Access, Credentials, KubeconfigSource, import_vendor
from multisched.client.errors import CredentialsError
from multisched.client.transport import find_credentials


def write(file: Path, names: Mapping[str, str], current: str = "", *, users: Sequence[str] | None = None) -> Path:
    """`names`: of clusters, with where each is; a context has the name of its cluster and of its user."""
    document = {
        "current-context": current,
        "clusters": [{"name": name, "cluster": {"server": server}} for name, server in names.items()],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name}} for name in names],
        "users": [{"name": name, "user": {"token": f"{file.name}-{name}"}} for name in (names if users is None else users)],
    }  # fmt: skip
    file.write_text(json.dumps(document))
    return file


async def access(files: Sequence[Path | str], context: str | None = None) -> Access:
    whole = Path(os.pathsep.join(str(file) for file in files))
    return (await Credentials.load(KubeconfigSource(import_vendor(), whole, context))).access


@pytest.fixture
def two(tmp_path: Path) -> tuple[Path, Path]:
    """Both have the cluster `both`, and one each."""
    return (
        write(tmp_path / "a", {"both": "https://a-both", "a": "https://a"}, "a"),
        write(tmp_path / "b", {"both": "https://b-both", "b": "https://b"}, "b"),
    )


async def test_first_file_decides_current_context_and_names(two: tuple[Path, Path]) -> None:
    assert (await access(two)).host == "https://a"
    assert (await access(two[::-1])).host == "https://b"
    found = await access(two, "both")
    assert (found.host, found.authorization) == ("https://a-both", "Bearer a-both")


async def test_context_of_any_file_can_be_used(two: tuple[Path, Path]) -> None:
    found = await access(two, "b")
    assert (found.host, found.authorization) == ("https://b", "Bearer b-b")


async def test_context_may_use_a_user_of_another_file(tmp_path: Path) -> None:
    one = write(tmp_path / "a", {"c": "https://c"}, "c", users=())
    other = write(tmp_path / "b", {"c": "https://other"})
    found = await access((one, other))
    assert (found.host, found.authorization) == ("https://c", "Bearer b-c")


async def test_current_context_may_be_in_the_second_file_only(tmp_path: Path) -> None:
    one, other = write(tmp_path / "a", {"a": "https://a"}), write(tmp_path / "b", {"b": "https://b"}, "a")
    assert (await access((one, other))).host == "https://a"


async def test_missing_files_and_empty_names_are_skipped(two: tuple[Path, Path], tmp_path: Path) -> None:
    assert (await access(("", tmp_path / "none", two[1], tmp_path / "a" / "below-a-file", ""))).host == "https://b"


async def test_all_files_are_named_if_none_exists(tmp_path: Path) -> None:
    with pytest.raises(CredentialsError, match=f"no kubeconfig at {tmp_path}/x:{tmp_path}/y"):
        await access((tmp_path / "x", tmp_path / "y"))


async def test_tilde_in_a_file_name_is_expanded(two: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(two[0].parent))
    assert (await access(("~/b", "~/a"))).host == "https://b"


async def test_home_of_an_unknown_user_is_no_file() -> None:
    with pytest.raises(CredentialsError, match="no kubeconfig at ~nobody-of-this-name/config"):
        await access(("~nobody-of-this-name/config",))


async def test_invalid_file_is_named(two: tuple[Path, Path], tmp_path: Path) -> None:
    bad = tmp_path / "bad"
    for text, why in (("[1]", "is not a kubeconfig"), ("a: [", "is not YAML"), ("\xff", "is not UTF-8 text")):
        bad.write_bytes(text.encode("latin-1"))
        with pytest.raises(CredentialsError, match=f"kubeconfig {two[0]}:{bad}: {bad} {why}"):
            await access((two[0], bad))


async def test_unknown_current_context_is_that_of_the_first_file(tmp_path: Path) -> None:
    one, other = write(tmp_path / "a", {"a": "https://a"}, "prod"), write(tmp_path / "b", {"b": "https://b"}, "b")
    with pytest.raises(CredentialsError, match=r"has no context prod; it has a, b$"):
        await access((one, other))


async def test_unreadable_file_is_not_skipped(two: tuple[Path, Path], tmp_path: Path) -> None:
    circle = tmp_path / "circle"
    circle.symlink_to(circle)
    for files in ((circle, two[0]), (two[0], circle)):
        with pytest.raises(CredentialsError, match=f"{circle} cannot be read: Too many levels of symbolic links"):
            await access(files)


async def test_unknown_context_is_reported_with_all_contexts(two: tuple[Path, Path]) -> None:
    with pytest.raises(CredentialsError, match=r"has no context prod; it has both, a, b$"):
        await access(two, "prod")


@pytest.mark.parametrize("variable", [None, "", "elsewhere"])
async def test_empty_kubeconfig_variable_counts_as_unset(
    variable: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".kube").mkdir()
    write(tmp_path / ".kube" / "config", {"home": "https://home"}, "home")
    write(tmp_path / "elsewhere", {"elsewhere": "https://elsewhere"}, "elsewhere")
    if variable is None:
        monkeypatch.delenv("KUBECONFIG", raising=False)
    else:
        monkeypatch.setenv("KUBECONFIG", variable)
    credentials = await find_credentials(import_vendor(), None, None)
    assert credentials.access.host == f"https://{variable or 'home'}"
