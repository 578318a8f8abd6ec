"""The jobs of a build on Kubernetes: a file for `kubectl apply` with plan, an Indexed Job of tasks, and finish.

Kubernetes starts all jobs of a file at once. So the pods of tasks and finish wait in an init container for the job
before them, which they see in the store.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Annotated

from decodeonce.cli import EXIT_STOPPED
from decodeonce.cli.options import option
from decodeonce.formatting import quoted

# A finish of a large store reads its journals, so look rarely.
PLANNED = "until prep status {out} > /dev/null 2>&1; do sleep 10; done"
DECODED = """until prep status {out} --json | grep -Eq '"state": "(decoded|finished)"'; do sleep 30; done"""


@dataclass(frozen=True, kw_only=True)
class Pods:
    """The pods of a build: the flags of `prep submit kubernetes`."""

    tasks: Annotated[int, option("Run the build as an Indexed Job of N pods.", "N", min=1)]
    cpus: Annotated[int, option("Request N cores per pod.", "N", min=1)]
    image: Annotated[str, option("Use this container image, which must contain decodeonce.", "IMAGE")]
    claim: Annotated[str, option("Mount this PersistentVolumeClaim, which holds SRC and OUT, in all pods.", "NAME")]
    mount: Annotated[str, option("Mount the claim at this folder.", "DIR")] = "/data"
    mem: Annotated[str | None, option("Limit each pod to this memory, such as 64Gi. (default: no limit)", "BYTES")] = (
        None
    )
    max_running: Annotated[
        int | None, option("Run at most N pods at the same time. (default: no limit)", "N", min=1)
    ] = None

    def __post_init__(self) -> None:
        if self.mem is not None and not re.fullmatch("[0-9]+[KMGT]i?", self.mem):
            raise ValueError(f"mem is {self.mem!r}, expected a number and a unit, such as 64Gi")
        if not PurePosixPath(self.mount).is_absolute():
            raise ValueError(f"mount is {self.mount!r}, expected an absolute path")
        if not re.fullmatch(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?", self.claim):
            raise ValueError(f"claim is {self.claim!r}, expected the name of a PersistentVolumeClaim")


def build_jobs(out: str, pods: Pods, commands: Sequence[Sequence[str]]) -> str:
    """Return the text of a YAML file with the jobs of these commands (plan, work, finish) on `out`, a path in a pod."""
    name = re.sub("[^a-z0-9]+", "-", PurePosixPath(out).name.lower()).strip("-")[:40].strip("-") or "store"
    plan, work, finish = commands
    running = min(pods.tasks, pods.max_running or pods.tasks)
    indexed = f"  completionMode: Indexed\n  completions: {pods.tasks}\n  parallelism: {running}\n"
    jobs = [
        _job(name, "plan", pods, plan),
        _job(name, "work", pods, work, cpus=pods.cpus, waits=PLANNED.format(out=quoted(out)), indexed=indexed),
        _job(name, "finish", pods, finish, waits=DECODED.format(out=quoted(out))),
    ]
    return f"# To watch: kubectl get pods -l build={name}. To cancel: kubectl delete jobs -l build={name}\n" + "".join(
        jobs
    )


def _job(
    build: str, name: str, pods: Pods, command: Sequence[str], *, cpus: int = 1, waits: str = "", indexed: str = ""
) -> str:
    wait = f"      initContainers:\n{_container('wait', pods, ['sh', '-c', waits], 1)}" if waits else ""
    return f"""\
---
apiVersion: batch/v1
kind: Job
metadata:
  name: {build}-{name}
  labels: {{build: {build}}}
spec:
{indexed}  backoffLimit: 6
  podFailurePolicy: # a task that stopped, or whose node is drained, resumes in a new pod, and no failure is counted
    rules:
    - action: Ignore
      onExitCodes: {{operator: In, values: [{EXIT_STOPPED}]}}
    - action: Ignore
      onPodConditions: [{{type: DisruptionTarget, status: "True"}}]
  template:
    metadata:
      labels: {{build: {build}}}
    spec:
      restartPolicy: Never
{wait}      containers:
{_container("prep", pods, command, cpus)}      volumes:
      - name: data
        persistentVolumeClaim: {{claimName: {pods.claim}}}
"""


def _container(name: str, pods: Pods, command: Sequence[str], cpus: int) -> str:
    words = json.dumps([word.replace("$", "$$") for word in command])  # Kubernetes expands $(NAME), and $$ is a $
    memory = f", memory: {pods.mem}" if pods.mem else ""
    limits = f", limits: {{memory: {pods.mem}}}" if pods.mem else ""
    return f"""\
      - name: {name}
        image: {json.dumps(pods.image)}
        command: {words}
        workingDir: {json.dumps(pods.mount)}
        resources: {{requests: {{cpu: {cpus}{memory}}}{limits}}}
        volumeMounts: [{{name: data, mountPath: {json.dumps(pods.mount)}}}]
"""
