"""`make dist`: the same bytes twice, a version that fits the tag, and a wheel that runs where nothing else is installed."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest
from packaging.version import Version

from multisched.page.files import page_files
from tests.release.dist import CHECKSUMS, ROOT, VERSION_FILE, ReleaseError, build, version_of

pytestmark = pytest.mark.timeout(600)

STEP_TIMEOUT_S = 400


def run(command: list[str | Path], folder: Path, variables: Mapping[str, str] | None = None) -> str:
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, **(variables or {})},
        capture_output=True,
        text=True,
        timeout=STEP_TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of this very commit."""
    folder = tmp_path_factory.mktemp("dist") / "made"
    build(ROOT, folder)
    return folder


def test_two_builds_are_identical(made: Path, tmp_path: Path) -> None:
    """Another process, time zone, umask and order of hashing change nothing."""
    command = f'umask 077 && exec "{sys.executable}" -m tests.release.dist --output "{tmp_path / "again"}"'
    run(["sh", "-c", command], ROOT, {"TZ": "Pacific/Chatham", "PYTHONHASHSEED": "7", "LC_ALL": "C"})
    assert contents(tmp_path / "again") == contents(made)


def test_checksums_match_the_files(made: Path) -> None:
    found = contents(made)
    lines = found.pop(CHECKSUMS).decode().splitlines()
    assert lines == [f"{hashlib.sha256(content).hexdigest()}  {name}" for name, content in sorted(found.items())]
    version = version_of(ROOT)
    assert sorted(found) == sorted(
        [f"multisched-{version}-py3-none-any.whl", f"multisched-{version}.tar.gz", f"multisched-{version}.cdx.json"]
    )


def test_bill_of_materials_lists_the_packages_of_the_image(made: Path) -> None:
    (file,), (wheel,) = made.glob("*.cdx.json"), made.glob("*.whl")
    bom = json.loads(file.read_text())
    assert (bom["bomFormat"], bom["specVersion"]) == ("CycloneDX", "1.6")
    locked = (ROOT / "deploy/requirements.txt").read_text().splitlines()
    pinned = {line.split(" ")[0] for line in locked if line and not line.startswith(" ")}
    assert {f"{one['name']}=={one['version']}" for one in bom["components"]} == pinned
    component = bom["metadata"]["component"]
    assert component["version"] == version_of(ROOT)
    assert component["hashes"] == [{"alg": "SHA-256", "content": hashlib.sha256(wheel.read_bytes()).hexdigest()}]


def test_wheel_runs_with_only_the_packages_of_the_image(made: Path, tmp_path: Path) -> None:
    """`pip check` says that the locked set is all that the wheel asks for."""
    (wheel,) = made.glob("*.whl")
    run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], tmp_path)
    binaries = tmp_path / "venv" / "bin"
    pip: list[str | Path] = [sys.executable, "-m", "pip", "--python", binaries / "python"]
    install = [*pip, "install", "--quiet", "--no-compile"]
    locked = ["--require-hashes", "--only-binary=:all:", "-r", str(ROOT / "deploy/requirements.txt")]
    run([*install, *locked], tmp_path)
    run([*install, "--no-deps", wheel], tmp_path)
    run([*pip, "check"], tmp_path)

    multisched = binaries / "multisched"
    assert "explain" in run([multisched, "--help"], tmp_path)
    run([multisched, "config", "validate", ROOT / "deploy/base/multisched.yaml"], tmp_path)
    assert run([multisched, "config", "default"], tmp_path) == (ROOT / "config/default.yaml").read_text()
    shown = run(
        [binaries / "python", "-c", "import multisched; print(multisched.__version__, multisched.__file__)"], tmp_path
    )
    assert shown.split()[0] == version_of(ROOT)
    assert str(tmp_path) in shown.split()[1]
    served = run(
        [binaries / "python", "-c", "from multisched.page.files import page_files; print(*sorted(page_files()))"],
        tmp_path,
    )
    assert served.split() == sorted(page_files())


def test_the_wheel_holds_the_packages_and_their_data(made: Path) -> None:
    (wheel,) = made.glob("*.whl")
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    tracked = set(run(["git", "ls-tree", "-r", "--name-only", "HEAD", "multisched", "domains"], ROOT).splitlines())
    assert names == tracked


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A clone in small: one commit, whose sources say 1.2.0."""
    file = tmp_path / VERSION_FILE
    file.parent.mkdir()
    file.write_text('__version__ = "1.2.0"\n')
    git(tmp_path, "init", "--quiet")
    commit(tmp_path)
    return tmp_path


def git(folder: Path, *arguments: str) -> None:
    author = [
        "-c",
        "user.name=a",
        "-c",
        "user.email=a@example.com",
        "-c",
        "commit.gpgsign=false",
        "-c",
        "tag.gpgsign=false",
    ]
    run(["git", *author, *arguments], folder)


def commit(folder: Path) -> None:
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--allow-empty", "--message", "x")


def test_version_equals_that_of_the_tag(repository: Path) -> None:
    git(repository, "tag", "v1.2.0")
    assert version_of(repository) == "1.2.0"


def test_without_a_tag_the_version_lies_between_two_releases(repository: Path) -> None:
    first = Version(version_of(repository))
    assert Version("1.1.9") < first < Version("1.2.0")
    git(repository, "tag", "v1.2.0")
    commit(repository)
    after = Version(version_of(repository))
    assert Version("1.2.0") < after < Version("1.2.1")
    (repository / VERSION_FILE).write_text('__version__ = "1.3.0"\n')
    commit(repository)
    assert Version("1.2.1") < Version(version_of(repository)) < Version("1.3.0")


@pytest.mark.parametrize(("tag", "told"), [("v1.3.0", "says 1.3.0, and .* says 1.2.0"), ("v1.x", "is no version")])
def test_invalid_tag_is_refused(repository: Path, tag: str, told: str) -> None:
    git(repository, "tag", tag)
    with pytest.raises(ReleaseError, match=told):
        version_of(repository)
