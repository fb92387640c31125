"""Processes in place of the pods of an installed multisched, as kubelets would run them: no machine stands behind the nodes.

`PodProcesses.watching` watches one namespace until the block ends. A new pod gets a process with the pod's configuration, the
rights of the pod's account, and the program that its image stands for; the pod is Ready when the process says so. When the
pod goes, its process is asked to end. So whatever rolls pods out (a Deployment, `kubectl rollout`, `helm --wait`) rolls out
processes. A ConfigMap that changes comes to the files of the processes that mount it. They differ from pods in the server's
settings, as in `deployed.py`.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import AsyncIterator, Mapping, Set
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import aiohttp
import anyio
import anyio.abc
import anyio.to_thread
import yaml

from tests.real.admin import Admin, until
from tests.real.deployed import Scheduler, credential_of
from tests.real.program import Program
from tests.real.rendering import RefusedError, run

POLL_S: Final = 0.5
STOP_GRACE_S: Final = 30
GONE_LIMIT_S: Final = 60
CRASHED_PAUSE_S: Final = 5.0
"""Before the process of a pod that has crashed is started again."""
CONTAINER: Final = "multisched"
Pod = dict[str, Any]


class PodProcesses:
    """Only `watching` makes one."""

    def __init__(
        self,
        admin: Admin,
        kubectl: Path,
        kubeconfig: Path,
        namespace: str,
        folder: Path,
        trees: Mapping[str, Path],
    ) -> None:
        self._admin = admin
        self._kubectl = kubectl
        self._kubeconfig = kubeconfig
        self._namespace = namespace
        self._folder = folder
        self._trees = trees
        """Image -> folder that holds its program."""
        self._started: set[str] = set()
        self._ready: set[str] = set()
        self.running: dict[str, Scheduler] = {}
        """By pod."""
        self.ended: dict[str, tuple[Scheduler, int]] = {}
        """By pod: with the code it ended with when its pod went."""
        self.may_crash = False
        """A process that ends by itself is started again, as a kubelet would."""
        self.crashed: dict[str, list[tuple[Scheduler, int]]] = {}
        """By pod: each that has ended by itself, with its code."""
        self._again_s: dict[str, float] = {}
        """Pod -> when its process is started again."""
        self._mounted: dict[str, tuple[str, str]] = {}
        """Pod -> its ConfigMap, and what that said last."""

    @classmethod
    @asynccontextmanager
    async def watching(
        cls, kubectl: Path, kubeconfig: Path, namespace: str, folder: Path, trees: Mapping[str, Path]
    ) -> AsyncIterator[PodProcesses]:
        """Raises ProgramEndedError when a process ends by itself, unless it `may_crash`."""
        async with Admin.by(kubeconfig) as admin:
            self = cls(admin, kubectl, kubeconfig, namespace, folder, trees)
            try:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(self._run, tasks)
                    yield self
                    tasks.cancel_scope.cancel()
            finally:
                with anyio.CancelScope(shield=True):
                    for scheduler in self.running.values():
                        await scheduler.program.kill()

    @property
    def schedulers(self) -> list[Scheduler]:
        """All that ever ran."""
        return [*self.running.values(), *(scheduler for scheduler, _code in self.ended.values())]

    async def wait_without(self, pods: Set[str]) -> None:
        """Until all of these have ended: a Deployment is through with a rollout a moment before its old pods are gone."""

        async def are_gone() -> bool:
            return pods <= self.ended.keys()

        await until(are_gone, GONE_LIMIT_S)

    async def wait_none(self) -> None:
        """Until every pod is gone and every process has ended."""

        async def are_gone() -> bool:
            return not self.running and self._started == self.ended.keys()

        await until(are_gone, GONE_LIMIT_S)

    async def kubectl(self, *arguments: str, text: str = "") -> str:
        """What kubectl printed; `text` is its standard input."""
        command: list[str | Path] = [
            self._kubectl,
            "--kubeconfig",
            self._kubeconfig,
            "--namespace",
            self._namespace,
            *arguments,
        ]
        home = {"HOME": str(self._folder)}
        return await anyio.to_thread.run_sync(lambda: run(command, text, home))

    async def _run(self, tasks: anyio.abc.TaskGroup) -> None:
        while True:
            found = await self._admin.items(f"/api/v1/namespaces/{self._namespace}/pods")
            pods = {pod["metadata"]["name"]: pod for pod in found if not pod["metadata"].get("deletionTimestamp")}
            for name in self.running.keys() - pods.keys():
                tasks.start_soon(self._stop, name, self.running.pop(name))
            crashed = {name for name, again_s in self._again_s.items() if again_s > anyio.current_time()}
            for name in pods.keys() - self.running.keys() - self.ended.keys() - crashed:
                self.running[name] = await self._start(name, pods[name])
                self._started.add(name)
            await self._mount()
            for name in self.running.keys() - self._ready:
                if not self._has_crashed(name):
                    await self._look(name)
            await anyio.sleep(POLL_S)

    async def _start(self, name: str, pod: Pod) -> Scheduler:
        (container,) = [one for one in pod["spec"]["containers"] if one["name"] == CONTAINER]
        kubeconfig = await self._kubeconfig_of(name, pod["spec"]["serviceAccountName"])
        (volume,) = [one for one in pod["spec"]["volumes"] if one["name"] == "config"]
        config_map = volume["configMap"]["name"]
        text = (await self._configurations())[config_map]
        self._mounted[name] = config_map, text
        configuration = self._write(name, text)
        # -P: the program comes from its tree, not from the folder that the tests are started in.
        command = [sys.executable, "-P", "-m", "multisched", "run"]
        command += ["--kubeconfig", str(kubeconfig), "--config", str(configuration)]
        kept = {key: value for key, value in os.environ.items() if "proxy" not in key.lower()}
        own = {"PYTHONPATH": str(self._trees[container["image"]]), "POD_NAME": name, "POD_NAMESPACE": self._namespace}
        program = await Program.start(name, command, self._folder / f"{name}.log", {**kept, **own})
        return Scheduler(name, credential_of(kubeconfig), program)

    def _has_crashed(self, name: str) -> bool:
        """Notes it, and when its process comes back."""
        code = self.running[name].program.returncode
        if code is None or not self.may_crash:
            return False
        self.crashed.setdefault(name, []).append((self.running.pop(name), code))
        self._again_s[name] = anyio.current_time() + CRASHED_PAUSE_S
        return True

    async def _mount(self) -> None:
        """Brings what ConfigMaps say now to the files of the processes, each in one step."""
        texts = await self._configurations() if self._mounted else {}
        for name in self.running:
            config_map, before = self._mounted[name]
            text = texts.get(config_map, before)
            if text != before:
                self._mounted[name] = config_map, text
                self._write(name, text)

    def _write(self, name: str, text: str) -> Path:
        """The pod's file, with the server's settings for a process beside others."""
        path = self._folder / f"{name}.yaml"
        document = yaml.safe_load(text)
        document["server"] |= {"bindAddress": "127.0.0.1", "port": 0, "probePort": 0}
        unfinished = path.with_suffix(".new")
        unfinished.write_text(json.dumps(document))
        unfinished.replace(path)
        return path

    async def _configurations(self) -> dict[str, str]:
        """ConfigMap -> the file in it."""
        found = await self._admin.items(f"/api/v1/namespaces/{self._namespace}/configmaps")
        return {
            one["metadata"]["name"]: one["data"]["multisched.yaml"]
            for one in found
            if "multisched.yaml" in one.get("data", {})
        }

    async def _kubeconfig_of(self, name: str, account: str) -> Path:
        document = yaml.safe_load(self._kubeconfig.read_text())
        contexts = {one["name"]: one["context"] for one in document["contexts"]}
        token = (await self.kubectl("create", "token", account, "--duration", "2h")).strip()
        document["users"] = [{"name": contexts[document["current-context"]]["user"], "user": {"token": token}}]
        path = self._folder / f"{name}.kubeconfig"
        path.touch(mode=0o600)
        path.write_text(json.dumps(document))
        return path

    async def _look(self, name: str) -> None:
        """Passes on to the pod what its readiness probe would find."""
        scheduler = self.running[name]
        if not self.may_crash:
            scheduler.program.check_running()
        probes = [line["probes"] for line in scheduler.log_lines() if line.get("probes")]
        if not probes:
            return
        async with aiohttp.request("GET", f"{probes[0]}/readyz") as answer:
            if answer.status != 200:
                return
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        status = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": now}]}
        patch = json.dumps({"status": status})
        try:
            await self.kubectl("patch", "pod", name, "--subresource=status", "--type=merge", "-p", patch)
        except RefusedError as error:
            if "not found" not in str(error):
                raise  # a pod that went meanwhile needs no probe
        self._ready.add(name)

    async def _stop(self, name: str, scheduler: Scheduler) -> None:
        with anyio.CancelScope(shield=True):  # nobody else would wait for it
            self.ended[name] = (scheduler, await scheduler.program.stop(STOP_GRACE_S))
