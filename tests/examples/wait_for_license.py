"""A PreBind plugin: a pod that needs a licence is bound only once the licence server has granted one.

Pods say `example.com/license: NAME` as an annotation. The server speaks lines over TCP: `reserve NAME UID`, answered by
`granted`, as late as it takes, or by `refused REASON`. A reservation lapses at the server unless the pod claims it in
time, so a bind that fails afterwards leaves nothing to undo here. Asking again for the same uid is no second licence.
"""

from collections.abc import Mapping
from typing import Any

import anyio
from anyio.streams.buffered import BufferedByteReceiveStream

from multisched.framework.points import CycleView
from multisched.framework.status import SKIP, SUCCESS, Status
from multisched.model.objects import Pod

LICENSE = "example.com/license"
ANSWER_BYTES_MAX = 1024


class WaitForLicense:
    name = "WaitForLicense"

    def __init__(self, args: Mapping[str, Any]) -> None:
        self._host, _, port = str(args["server"]).rpartition(":")
        self._port = int(port)
        self._timeout_s = float(args.get("timeoutSeconds", 60))

    def pre_bind_pre_flight(self, cycle: CycleView, pod: Pod, node: str) -> Status:
        return SUCCESS if LICENSE in pod.annotations else SKIP

    async def pre_bind(self, cycle: CycleView, pod: Pod, node: str) -> Status:
        """Waits for the answer in a bind worker: other pods are scheduled and bound meanwhile."""
        license_name = pod.annotations.get(LICENSE)
        if license_name is None:
            return SUCCESS
        if not license_name.isidentifier():
            return Status.unresolvable(
                f"annotation {LICENSE}: {license_name[:40]!r} is not a name; use letters and digits"
            )
        try:
            with anyio.fail_after(self._timeout_s):
                answer = await self._ask(f"reserve {license_name} {pod.uid}\n")
        except TimeoutError:
            return Status.error(f"license {license_name}: none came free within {self._timeout_s:g} s")
        except (OSError, anyio.EndOfStream, anyio.IncompleteRead, anyio.DelimiterNotFound) as error:
            return Status.error(f"license server {self._host}:{self._port}: {type(error).__name__}: {error}")
        return SUCCESS if answer == "granted" else Status.unschedulable(f"license {license_name}: {answer[:100]}")

    async def _ask(self, line: str) -> str:
        async with await anyio.connect_tcp(self._host, self._port) as stream:
            await stream.send(line.encode())
            answer = await BufferedByteReceiveStream(stream).receive_until(b"\n", ANSWER_BYTES_MAX)
            return answer.decode(errors="replace").strip()
