"""Commands of the documents as the tests run them: `multisched`, whose server has the session's port, and `curl -s URL`."""

from __future__ import annotations

import os
import sys
import urllib.request
from pathlib import Path
from urllib.parse import urlsplit


def main() -> None:
    name, *arguments = sys.argv[1:]
    if name == "curl":
        with urllib.request.urlopen(arguments[-1]) as answer:
            sys.stdout.write(answer.read().decode())
        return
    if arguments[:1] == ["run"]:
        arguments += ["--port", str(urlsplit(os.environ["MULTISCHED_SERVER"]).port)]
    command = Path(sys.executable).with_name("multisched")
    os.execv(command, [str(command), *arguments])


main()
