"""A Dockerfile read, and its steps carried out below a folder that stands for the root of the image, without Docker.

`instructions` reads; `Image` owns the folder. Absolute paths of the image are looked for below it, and a copy of this
interpreter is what the image's `python` is. Nothing is isolated: steps that write elsewhere would do so here.
"""

from __future__ import annotations

import fnmatch
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

STEP_TIMEOUT_S: Final = 400
IMAGE_PATH: Final = re.compile(r"(?<![\w./-])/(?=(?:opt|src|usr/local)\b)")
"""Where an absolute path of the image begins; those of the shell, as /dev/null, are none."""
LEFT_OUT: Final = ("test", "site-packages", "dist-packages", "__pycache__", "idlelib", "tkinter", "config-*", "lib2to3")
"""Of this interpreter's library: large, and asked for by nobody."""


class Instruction(NamedTuple):
    """One line, with those that continue it."""

    name: str
    text: str


def instructions(dockerfile: str) -> list[Instruction]:
    """In order, without comments."""
    lines = [line for line in dockerfile.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    joined = "\n".join(lines).replace("\\\n", " ").splitlines()
    return [Instruction(*line.split(maxsplit=1)) for line in joined]


class Image:
    """The file system of an image, and what its instructions have set so far. `context` is the folder of the build."""

    def __init__(self, root: Path, context: Path) -> None:
        self.root = root
        self.context = context
        self.environment: dict[str, str] = {}
        self.user = ""
        self.entrypoint: list[str] = []
        self.command: list[str] = []
        self._folder = root
        self._ignored = (context / ".dockerignore").read_text().split("\n")

    def build(self, dockerfile: str) -> None:
        """Every instruction, in order. Raises AssertionError with the output of a step that fails."""
        for name, text in instructions(dockerfile):
            getattr(self, f"_{name.lower()}")(text)

    def run(
        self, command: Sequence[str], user: int | None = None, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        """A command of the image with its environment; as `user`, or as whoever runs this."""
        return subprocess.run(
            command,
            cwd=self._folder,
            env=self.variables(variables),
            user=user,
            group=user,
            extra_groups=None if user is None else [],
            capture_output=True,
            text=True,
            timeout=STEP_TIMEOUT_S,
            check=False,
        )

    def variables(self, more: Mapping[str, str]) -> dict[str, str]:
        """The environment of a process of the image; pip asks the index of this machine, as the builder's pip does."""
        outer = {
            name: value
            for name, value in os.environ.items()
            if name.startswith(("PIP_", "SSL_")) or "proxy" in name.lower()
        }
        own = {"PATH": f"{self.root}/usr/local/bin:{os.defpath}", "LD_LIBRARY_PATH": f"{self.root}/usr/local/lib"}
        return {**own, **outer, **self.environment, **more}

    def here(self, text: str) -> str:
        """With absolute paths of the image as they are on this machine."""
        return IMAGE_PATH.sub(f"{self.root}/", text)

    def install_python(self) -> None:
        """Puts a copy of this interpreter where the base image has its own."""
        library = Path(sysconfig.get_path("stdlib"))
        shutil.copytree(library, self.root / "usr/local/lib" / library.name, ignore=shutil.ignore_patterns(*LEFT_OUT))
        folder = self.root / "usr/local/bin"
        folder.mkdir(parents=True)
        shutil.copy2(os.path.realpath(sys.executable), folder / "python3")
        (folder / "python").symlink_to("python3")
        shared = Path(sysconfig.get_config_var("LIBDIR")) / str(sysconfig.get_config_var("INSTSONAME"))
        if sysconfig.get_config_var("Py_ENABLE_SHARED"):
            shutil.copy2(shared, self.root / "usr/local/lib")

    def _arg(self, _text: str) -> None:
        pass  # of the base image, whose place this interpreter takes

    _from = _label = _expose = _arg

    def _env(self, text: str) -> None:
        for part in shlex.split(text):
            name, _, value = part.partition("=")
            path = f"{self.root}/usr/local/bin:{os.defpath}"
            self.environment[name] = self.here(value.replace("$PATH", self.environment.get("PATH", path)))

    def _workdir(self, text: str) -> None:
        self._folder = Path(self.here(text))
        self._folder.mkdir(parents=True, exist_ok=True)

    def _run(self, text: str) -> None:
        done = self.run(["sh", "-c", self.here(text)])
        assert done.returncode == 0, f"RUN {text}: {done.stdout}{done.stderr}"

    def _copy(self, text: str) -> None:
        *sources, target = text.split()
        if sources[0].startswith("--from="):
            # Stages share one root here, so what is copied between them has to keep its path.
            assert sources[1:] == [target], f"COPY {text}: a virtual environment works in its own place only"
            return
        folder = Path(self.here(target)) if target.startswith("/") else self._folder / target
        for source in sources:
            assert not self._is_ignored(source), f"COPY {source}: .dockerignore keeps it from the builder"
            self._place(self.context / source, folder, target)

    def _place(self, source: Path, target: Path, named: str) -> None:
        if source.is_dir():
            shutil.copytree(source, target, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
            return
        into = target / source.name if named.endswith(("/", ".")) else target
        into.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source, into)

    def _is_ignored(self, path: str) -> bool:
        """As Docker reads .dockerignore: the last line that matches a path, or a folder it is in, counts."""
        ignored = False
        for line in self._ignored:
            pattern = line.removeprefix("!").strip()
            parts = [path, *map(str, Path(path).parents)]
            if pattern and not line.startswith("#") and any(fnmatch.fnmatch(part, pattern) for part in parts):
                ignored = not line.startswith("!")
        return ignored

    def _user(self, text: str) -> None:
        self.user = text

    def _entrypoint(self, text: str) -> None:
        self.entrypoint = [self.here(part) for part in json.loads(text)]

    def _cmd(self, text: str) -> None:
        self.command = json.loads(text)
