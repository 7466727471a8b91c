"""Two machines on one: network namespaces with a cable between them, started by the systemd units of configs/systemd.

Each has its own network, its own temporary folder, its own cache, and no sight of this repository's packages: what
its workers import came with the job. Both see `shared`. Needs root, for `ip netns` and `mount`.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.conftest import REPOSITORY

TOKEN = "a" * 64
BIN = Path(sys.executable).parent
PACKAGES = (
    "pipeline",
    "stages",
    "shardwriter",
    "loader",
    "config_files",
    "storage",
    "training",
)


def why_not() -> str | None:
    """Why machines cannot be made here, if they cannot."""
    if os.geteuid() != 0:
        return "needs root: network namespaces"
    if shutil.which("ip") is None or shutil.which("unshare") is None:
        return "needs ip (iproute2) and unshare (util-linux)"
    probe = f"cm{os.getpid()}probe"
    made = subprocess.run(
        ["ip", "netns", "add", probe], capture_output=True, text=True, check=False
    )
    if made.returncode != 0:
        return f"cannot make a network namespace: {made.stderr.strip()}"
    subprocess.run(["ip", "netns", "del", probe], check=True)
    return None


def exec_start(split: str) -> str:
    """The command of a unit, in one line."""
    text = (REPOSITORY / "configs" / "systemd" / split).read_text()
    (command,) = re.findall(r"^ExecStart=((?:.*\\\n)*.*)", text, re.MULTILINE)
    return command.replace("\\\n", " ")


@dataclass
class Machine:
    """One machine, on or off."""

    name: str
    address: str
    folder: Path  # of its own
    environment: Mapping[str, str]
    split: str
    arguments: Mapping[str, str]  # of the unit
    more: str  # arguments beside the unit's
    _process: subprocess.Popen[bytes] | None = field(default=None)

    @property
    def cache(self) -> Path:
        """Its cache, seen from outside."""
        return self.folder / "cache"

    def start(self) -> None:
        """Run the unit's command, again when it ends, in view of this machine's own folders only."""
        command = exec_start(self.split).replace("/opt/corpusmill/.venv/bin", str(BIN))
        for name, value in self.arguments.items():
            command = command.replace(f"${{{name}}}", shlex.quote(value))
        hide = [f"mount -t tmpfs none {folder}" for folder in _sources()]
        own = [
            f"mkdir -p {self.folder}/ray /var/tmp/ray",
            f"mount --bind {self.folder}/ray /var/tmp/ray",
        ]
        own += [f"mount --bind {self.cache} {self.environment['CORPUSMILL_CACHE']}"]
        script = " && ".join(
            [*hide, *own, "cd /", f"while :; do {command} {self.more}; sleep 1; done"]
        )
        with (self.folder / "ray.log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    "ip",
                    "netns",
                    "exec",
                    self.name,
                    "unshare",
                    "--mount",
                    "sh",
                    "-c",
                    script,
                ],
                env={**self.environment},
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def kill(self) -> None:
        """Kill -9 of every process on it."""
        for _ in range(3):  # one may have been about to start another
            pids = subprocess.run(
                ["ip", "netns", "pids", self.name],
                capture_output=True,
                text=True,
                check=True,
            )
            for pid in pids.stdout.split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), 9)
            time.sleep(0.1)
        if self._process is not None:
            self._process.wait()
            self._process = None

    def pids(self, words: str) -> list[int]:
        """Processes on it whose command line holds these words."""
        pids = subprocess.run(
            ["ip", "netns", "pids", self.name], capture_output=True, text=True, check=True
        )
        found: list[int] = []
        for pid in pids.stdout.split():
            with contextlib.suppress(OSError):
                if (
                    words
                    in Path(f"/proc/{pid}/cmdline")
                    .read_bytes()
                    .replace(b"\0", b" ")
                    .decode()
                ):
                    found.append(int(pid))
        return found

    def run(self, *command: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """A command as a user of this machine's network would type it; its output as one text."""
        return subprocess.run(
            ["ip", "netns", "exec", self.name, *command],
            env={**self.environment, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=600,
        )

    def listening(self) -> set[int]:
        """The TCP ports on which something listens for other machines."""
        out = self.run("ss", "-Hltn").stdout
        found = [line.split()[3].rsplit(":", 1) for line in out.splitlines()]
        return {
            int(port)
            for address, port in found
            if not address.startswith(("127.", "[::1]"))
        }


def _sources() -> list[str]:
    """Where this Python finds our packages when no job brings them."""
    code = f"import importlib.util as u; print([s.origin for s in map(u.find_spec, {PACKAGES}) if s])"
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    found = subprocess.run(
        [sys.executable, "-c", code],
        env=environment,
        cwd="/",
        capture_output=True,
        text=True,
        check=True,
    )
    return sorted(
        {str(Path(origin).parent) for origin in json.loads(found.stdout.replace("'", '"'))}
    )


@dataclass
class Cluster:
    """A head that works, too, with one CPU, and a larger worker."""

    head: Machine
    worker: Machine
    shared: Path
    working_dir: Path

    def submit(
        self, *command: str, wait: bool = True, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        """`ray job submit --working-dir .` from a folder like this repository."""
        flags = [] if wait else ["--no-wait"]
        return self.head.run(
            str(BIN / "ray"), "job", "submit", f"--address=http://{self.head.address}:8265",
            f"--working-dir={self.working_dir}", *flags, "--", *command, **environment,
        )  # fmt: skip

    def wait(self, num_nodes: int, timeout_s: float = 240) -> None:
        """Until so many machines are alive, by the head's own account."""
        deadline = time.monotonic() + timeout_s
        while (found := self.alive()) != num_nodes:
            if time.monotonic() > deadline:
                logs = [
                    log.read_text()[-2000:]
                    for m in (self.head, self.worker)
                    for log in m.folder.glob("ray.log")
                ]
                raise TimeoutError(
                    "\n\n".join([f"{found} machines are alive, wanted {num_nodes}", *logs])
                )
            time.sleep(1)

    def alive(self) -> int:
        """How many machines are alive; 0 before the head answers."""
        code = (
            "import json, sys, urllib.request as u; "
            f"url = 'http://{self.head.address}:8265/api/v0/nodes'; "
            f"asked = u.Request(url, headers={{'Authorization': 'Bearer {TOKEN}'}}); "
            "rows = json.load(u.urlopen(asked, timeout=20))['data']['result']['result']; "
            "print(sum(row['state'] == 'ALIVE' for row in rows))"
        )
        answer = self.head.run(sys.executable, "-I", "-c", code)
        return int(answer.stdout) if answer.returncode == 0 else 0


@contextlib.contextmanager
def cluster(folder: Path, wheels: Path, own_cache: Path) -> Iterator[Cluster]:
    """Both machines, on.

    Args:
        folder: for all that they write.
        wheels: packages that hold published models: the only index that they can reach.
        own_cache: what lies in the cache of each before it is started.
    """
    names = [f"cm{os.getpid()}{role}" for role in ("head", "worker")]
    addresses = ["10.77.0.1", "10.77.0.2"]
    shared, cache = folder / "shared", folder / "cache"
    for each in (shared, cache):
        each.mkdir()
    environment = {
        "PATH": f"{BIN}:{os.environ['PATH']}",
        "HOME": str(folder),
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": TOKEN,
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_raylet_start_wait_time_s": "120",  # on a machine that others use, too
        "RAY_agent_register_timeout_ms": "120000",
        "CORPUSMILL_CACHE": str(cache),
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(wheels),
        "COLUMNS": "140",
    }
    arguments: Sequence[Mapping[str, str]] = (
        {"NUM_CPUS": "1", "MEMORY": str(1_000 * 2**20)},
        {
            "NUM_CPUS": "2",
            "MEMORY": str(3_000 * 2**20),
            "RESOURCES": '{"classifier": 1}',
            "HEAD_IP": addresses[0],
        },
    )
    machines: list[Machine] = []
    roles = zip(
        names, addresses, ("head", "worker"), arguments, ("", "--num-gpus=1"), strict=True
    )
    for name, address, split, given, more in roles:
        own = folder / split
        shutil.copytree(own_cache, own / "cache")
        machines.append(
            Machine(
                name,
                address,
                own,
                environment,
                f"ray-{split}.service",
                {**given, "NODE_IP": address},
                more,
            )
        )
    working_dir = folder / "working-dir"
    for package in (*PACKAGES, "configs"):
        shutil.copytree(
            REPOSITORY / package,
            working_dir / package,
            ignore=shutil.ignore_patterns("__pycache__"),
        )
    try:
        _connect(names, addresses)
        made = Cluster(*machines, shared, working_dir)
        for machine in machines:
            machine.start()
            # the head first: a worker that finds none ends
            made.wait(machines.index(machine) + 1)
        yield made
    finally:
        for machine in machines:
            machine.kill()
            subprocess.run(["ip", "netns", "del", machine.name], check=False)


def _connect(names: Sequence[str], addresses: Sequence[str]) -> None:
    """The namespaces, with a cable between them."""
    one, two = names
    cables = [f"{name[:13]}v{i}"[:15] for i, name in enumerate(names)]
    commands = [f"ip netns add {name}" for name in names]
    commands += [f"ip link add {cables[0]} type veth peer name {cables[1]}"]
    for name, cable, address in zip((one, two), cables, addresses, strict=True):
        commands += [
            f"ip link set {cable} netns {name}",
            f"ip -n {name} addr add {address}/24 dev {cable}",
        ]
        commands += [f"ip -n {name} link set {cable} up", f"ip -n {name} link set lo up"]
    for command in commands:
        subprocess.run(command.split(), check=True)
