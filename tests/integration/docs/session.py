"""Runs the commands of one document, as somebody does who types them: in the root of a repository, one block after the other.

`multisched`, `kubectl` and `curl` are found on the path. What differs from a user's machine: `/tmp` is a folder of the test, the
server has a port of its own in place of 10260, and `.venv/bin/multisched` is the one under test.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

from tests.integration.docs.blocks import ROOT, Block

COMMAND_LIMIT_S: Final = 240.0
START_LIMIT_S: Final = 240.0
SHIMS: Final = Path(__file__).with_name("shims.py")
KUBECTL: Final = Path(__file__).with_name("kubectl.py")
DEFAULT_SERVER: Final = "http://127.0.0.1:10260"
RUNBOOKS: Final = ROOT / "docs" / "runbooks"
"""Written for a deployment: of their commands those of multisched are run beside the demo."""
PLACEHOLDERS: Final = {"default/NAME": "default/too-big", "namespace1/NAME": "default/too-big", "NODE": "work-001"}
REST: Final = "..."
FIGURE: Final = re.compile(r"\d+(\.\d+)?(Gi|m|k|M|G)?")
MASKS: Final = (
    (re.compile(r"\b(default|team-\w+)/[\w-]+"), "POD"),
    (re.compile(r" \(no plan has fewer than \d+\)"), ""),
    (re.compile(r"\b(Mon|Tue|Wed|Thu|Fri|Sat|Sun)\b"), "DAY"),
    (re.compile(r"[ ▁-█]*[▁-█][ ▁-█]*"), " PLOT "),
    (re.compile(r"\[[#+\-. ]+\]"), "BAR"),
    (re.compile(r"\b(move|repair|replica|node|pod)s?\b"), r"\1"),
    (FIGURE, "N"),
    (re.compile(r"(?<= )-(?= |$)"), "N"),
    (re.compile(r" +"), " "),
)


_SIMULATED: Final[set[str]] = set()
_ASKED: Final[set[str]] = set()


def _bare(command: str) -> str:
    return command.partition("#")[0].strip()


def _for_the_demo(text: str) -> str:
    """Of a runbook, what the demo can be asked."""
    lines = [line for line in text.splitlines() if line.startswith("multisched ")]
    for name, stands_for in PLACEHOLDERS.items():
        lines = [line.replace(name, stands_for) for line in lines]
    fresh = [line for line in lines if line not in _ASKED]  # many runbooks begin alike
    _ASKED.update(fresh)
    return "".join(f"{line}\n" for line in fresh)


def masked(line: str) -> str:
    """Without figures, names and moments: what is the same in every run."""
    for pattern, stands_for in MASKS:
        line = pattern.sub(stands_for, line)
    return line.strip()


def missing(expected: str, output: str) -> list[str]:
    """Lines of a document that the output has not, one after the other. `...` may stand for lines, or for the rest of one."""
    found, lines = iter([masked(line) for line in output.splitlines()]), []
    for line in expected.splitlines():
        is_begun = line.rstrip().endswith(REST)
        wanted = masked(line.rstrip().removesuffix(REST))
        if not wanted:
            continue
        is_there = any(one.startswith(wanted) if is_begun else one == wanted for one in found)
        lines += [] if is_there else [line]
    return lines


class Session:
    """One document's terminals."""

    def __init__(self, folder: Path, home: Mapping[str, str]) -> None:
        """`home`: variables of a user beside the demo."""
        self.folder = folder
        self._demo = {
            **os.environ,
            "NO_COLOR": "1",
            "COLUMNS": "400",
            **home,
            "PATH": _path(folder),
            "HOME": str(folder),
        }
        self._own = dict(self._demo)
        self._server = home["MULTISCHED_SERVER"]
        self._programs: list[subprocess.Popen[bytes]] = []
        for entry in ROOT.iterdir():
            if not entry.name.startswith("."):
                (folder / entry.name).symlink_to(entry)

    def run(self, block: Block) -> str:
        """What is wrong with a block; empty for nothing."""
        if block.file:
            (self.folder / block.file).write_text(block.text)
        if block.mark == "no-run":
            return ""
        if block.document.is_relative_to(RUNBOOKS):
            block = replace(block, text=_for_the_demo(block.text))
        match block.language:
            case "sh" if block.mark == "terminals":
                return "".join(self._start(line) for line in block.text.splitlines())
            case "sh":
                code, output = self._call(block.text, self._own, keeps=True)
                return f"{block.place}: exit code {code}\n{output}" if code else ""
            case "console":
                surroundings = self._demo if block.mark == "demo" else self._own
                return "".join(self._compare(block, *one, surroundings) for one in block.commands())
        return ""

    def _compare(self, block: Block, command: str, expected: str, surroundings: dict[str, str]) -> str:
        code, output = self._call(command, surroundings)
        lines = missing(expected, output)
        if code in (0, 1) and not lines:
            return ""
        return f"{block.place}: $ {command}\nexit code {code}, without\n" + "\n".join(lines) + f"\nin\n{output}\n"

    def _call(self, text: str, surroundings: dict[str, str], *, keeps: bool = False) -> tuple[int, str]:
        """Exit code and both outputs. `keeps`: variables that are exported stay for later blocks."""
        script = f"set -eo pipefail\n{self._translated(text)}\nenv -0 >{shlex.quote(str(self.folder / '.env'))}\n"
        done = subprocess.run(
            ["bash", "-c", script],
            cwd=self.folder,
            env=surroundings,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=COMMAND_LIMIT_S,
        )
        if keeps and done.returncode == 0:
            pairs = (self.folder / ".env").read_text().rstrip("\0").split("\0")
            self._own = dict(pair.split("=", 1) for pair in pairs)
        return done.returncode, done.stdout.decode()

    def _translated(self, text: str) -> str:
        """A simulation has the same result wherever it is run: once is enough."""
        simulated = [line for line in text.splitlines() if line.startswith("multisched simulate ")]
        for line in simulated:
            if _bare(line) in _SIMULATED:
                text = text.replace(line, "true")
            _SIMULATED.add(_bare(line))
        text = text.replace(".venv/bin/multisched", "multisched").replace("/tmp/", f"{self.folder}/tmp-")
        return text.replace(DEFAULT_SERVER, self._own.get("MULTISCHED_SERVER", self._server))

    # -- programs that go on ---------------------------------------------------------------------------------------

    def _start(self, line: str) -> str:
        """Starts it, and returns when it is ready."""
        if " run " in line:
            port = _free_port()
            self._own["MULTISCHED_SERVER"] = f"http://127.0.0.1:{port}"
        log = self.folder / f"program-{len(self._programs)}.log"
        with log.open("wb") as output:
            program = subprocess.Popen(
                ["bash", "-c", f"exec env {self._translated(line)}"],
                cwd=self.folder,
                env=self._own,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        self._programs.append(program)
        end_s = time.monotonic() + START_LIMIT_S
        while time.monotonic() < end_s and program.poll() is None:
            if self._is_ready() if " run " in line else b"export KUBECONFIG=" in log.read_bytes():
                return ""
            time.sleep(0.05)  # another process's life
        return f"{line} did not start: {log.read_text()}"

    def _is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self._own['MULTISCHED_SERVER']}/readyz", timeout=5) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False

    def end(self) -> None:
        """The last one started goes first."""
        for program in reversed(self._programs):
            program.send_signal(signal.SIGTERM)
            program.wait(COMMAND_LIMIT_S)


def _path(folder: Path) -> str:
    """Where the commands of the documents are found."""
    bin_folder = folder / ".bin"
    bin_folder.mkdir()
    kubectl = os.environ.get("MULTISCHED_TEST_KUBECTL")
    for name in ("multisched", "curl", "kubectl"):
        script = f'exec {sys.executable} {SHIMS} {name} "$@"'
        if name == "kubectl":
            script = f'exec {kubectl} "$@"' if kubectl else f'PYTHONPATH={ROOT} exec {sys.executable} {KUBECTL} "$@"'
        (bin_folder / name).write_text(f"#!/bin/bash\n{script}\n")
        (bin_folder / name).chmod(0o755)
    return f"{bin_folder}:{os.environ['PATH']}"


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


@contextmanager
def running_demo(folder: Path) -> Iterator[dict[str, str]]:
    """`multisched demo`, after its story; the variables that it prints."""
    kubeconfig = folder / "demo-kubeconfig"
    command = [
        sys.executable,
        "-m",
        "multisched",
        "demo",
        "--nodes",
        "60",
        "--port",
        "0",
        "--kubeconfig",
        str(kubeconfig),
    ]
    environment = {**os.environ, "TMPDIR": str(folder), "XDG_RUNTIME_DIR": str(folder)}
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        found: dict[str, str] = {}
        try:
            for line in program.stdout:
                if line.startswith("export "):
                    name, _, value = line.removeprefix("export ").strip().partition("=")
                    found[name] = value
                if " reclaimed 4 of " in line:
                    break
            assert program.poll() is None, "the demo has ended"
            yield found
        finally:
            program.send_signal(signal.SIGINT)
            program.communicate()
