"""`make dist`: wheel, sdist, bill of materials and checksums of what is committed, the same bytes each time.

The version comes from the tag of HEAD, which the sources have to agree with. Without one it is a development version, so
that it sorts before the release to come and after the last one. Time stamps are those of the commit.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packaging.version import InvalidVersion, Version

from tests.real.releases import extract

ROOT: Final = Path(__file__).parents[2]
VERSION_FILE: Final = "multisched/__init__.py"
TAGS: Final = "v[0-9]*"
CHECKSUMS: Final = "SHA256SUMS"
BOM_SCHEMA: Final = SchemaVersion.V1_6


class ReleaseError(RuntimeError):
    """There is nothing to release yet; the message says what to do."""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="make dist", description=__doc__)
    parser.add_argument("--output", type=Path, default=ROOT / "dist", help="made anew")
    asked = parser.parse_args(arguments)
    try:
        for path in build(ROOT, asked.output):
            print(path)
    except ReleaseError as error:
        print(f"make dist: {error}", file=sys.stderr)
        return 1
    return 0


def build(repository: Path, output: Path) -> list[Path]:
    """Makes `output` anew; its files, the checksums last."""
    version = version_of(repository)
    if _git(repository, "status", "--porcelain", "--untracked-files=no"):
        print("make dist: changes that are not committed are left out", file=sys.stderr)
    shutil.rmtree(output, ignore_errors=True)
    output.mkdir(parents=True)
    with tempfile.TemporaryDirectory(prefix="dist-") as name:
        tree = extract("HEAD", Path(name), repository)
        _set_version(tree, version)
        environment = {**os.environ, "SOURCE_DATE_EPOCH": _git(repository, "log", "-1", "--format=%ct")}
        _run([sys.executable, "-m", "hatchling", "build", "-d", str(output.resolve())], tree, environment)
        (wheel,) = output.glob("*.whl")
        _write_bom(tree, output / f"multisched-{version}.cdx.json", version, wheel, environment)
    made = sorted(output.iterdir())
    lines = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in made]
    (output / CHECKSUMS).write_text("".join(lines))
    return [*made, output / CHECKSUMS]


def version_of(repository: Path) -> str:
    """Raises ReleaseError where the tag of HEAD is none of a version, or the sources say another one."""
    try:
        written = _written(repository / VERSION_FILE)
        here = _git(repository, "tag", "--points-at", "HEAD", "--list", TAGS).split()
    except subprocess.CalledProcessError as error:
        raise ReleaseError(f"no git repository: {error.stderr.strip()}; make a release from a clone") from error
    if here:
        return _of_tag(max(here, key=_parsed), written)
    before = _git(repository, "tag", "--merged", "HEAD", "--list", TAGS).split()
    last = max(before, key=_parsed, default="")
    since = _git(repository, "rev-list", "--count", f"{last}..HEAD" if last else "HEAD")
    commit = _git(repository, "rev-parse", "--short=12", "HEAD")
    coming = Version(written)
    if last and _parsed(last) >= coming:  # nobody has raised the version since the last release
        coming = Version(f"{coming.major}.{coming.minor}.{_parsed(last).micro + 1}")
    return f"{coming}.dev{since}+g{commit}"


def _of_tag(tag: str, written: str) -> str:
    version = str(_parsed(tag))
    if version != written:
        raise ReleaseError(
            f"the tag {tag} says {version}, and {VERSION_FILE} says {written}; set the version there, in deploy/base and in"
            " the chart, commit, and move the tag"
        )
    return version


def _parsed(tag: str) -> Version:
    try:
        return Version(tag.removeprefix("v"))
    except InvalidVersion as error:
        raise ReleaseError(f"the tag {tag} is no version; call it for example v1.2.3") from error


def _written(file: Path) -> str:
    (found,) = re.findall(r'^__version__ = "(.+)"$', file.read_text(), re.MULTILINE)
    return str(found)


def _set_version(tree: Path, version: str) -> None:
    file = tree / VERSION_FILE
    file.write_text(file.read_text().replace(f'"{_written(file)}"', f'"{version}"'))


def _write_bom(tree: Path, file: Path, version: str, wheel: Path, environment: Mapping[str, str]) -> None:
    """CycloneDX: what the image installs, by hash, and the wheel it belongs to."""
    command = [sys.executable, "-m", "cyclonedx_py", "requirements", "deploy/requirements.txt"]
    flags = ["--pyproject", "pyproject.toml", "--output-reproducible", "--sv", BOM_SCHEMA.to_version()]
    bom: dict[str, Any] = json.loads(_run([*command, *flags], tree, environment))
    for one in bom["components"]:
        del one["description"]  # the whole requirement, whose hashes stand below it
    component = bom["metadata"]["component"]
    component["version"] = version
    component["purl"] = f"pkg:pypi/multisched@{version.replace('+', '%2B')}"
    component["hashes"] = [{"alg": "SHA-256", "content": hashlib.sha256(wheel.read_bytes()).hexdigest()}]
    text = json.dumps(bom, indent=2, sort_keys=True) + "\n"
    wrong = JsonStrictValidator(BOM_SCHEMA).validate_str(text)
    assert wrong is None, wrong
    file.write_text(text)


def _git(repository: Path, *arguments: str) -> str:
    return _run(["git", *arguments], repository, os.environ).strip()


def _run(command: Sequence[str], folder: Path, environment: Mapping[str, str]) -> str:
    return subprocess.run(command, cwd=folder, env=environment, check=True, capture_output=True, text=True).stdout


if __name__ == "__main__":
    sys.exit(main())
