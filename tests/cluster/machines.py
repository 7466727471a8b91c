"""Two machines as network namespaces, started with the commands of configs/systemd.

Each has its own network, temporary folder and cache, and does not see the packages of
this repository: a job brings them. Both see `shared`. Needs root (`ip netns`, `mount`).
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
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.conftest import REPOSITORY

TOKEN = "a" * 64
# The link of a machine to the other one. Each namespace has its own names.
LINK = "cable"
BIN = Path(sys.executable).parent


def list_packages() -> list[str]:
    """Return the folders of the top-level packages."""
    pyproject = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
    names = pyproject["tool"]["setuptools"]["packages"]
    return sorted({name.partition(".")[0] for name in names})


def explain_absence() -> str | None:
    """Return why machines cannot be made here, or None."""
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


def read_start_command(service: str) -> str:
    """Return the start command of a systemd service in one line."""
    text = (REPOSITORY / "configs" / "systemd" / service).read_text()
    (command,) = re.findall(r"^ExecStart=((?:.*\\\n)*.*)", text, re.MULTILINE)
    return command.replace("\\\n", " ")


@dataclass
class Machine:
    """A network namespace with its processes."""

    name: str
    address: str
    folder: Path
    environment: Mapping[str, str]
    service: str
    arguments: Mapping[str, str]  # of the service
    more: str  # further arguments
    _process: subprocess.Popen[bytes] | None = field(default=None)

    @property
    def cache(self) -> Path:
        """Its cache, seen from outside."""
        return self.folder / "cache"

    def start(self) -> None:
        """Run the command of the service, and repeat it when it ends."""
        command = read_start_command(self.service).replace(
            "/opt/corpusmill/.venv/bin", str(BIN)
        )
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

    def cut_off(self) -> None:
        """Take the link down: packets are lost, and no connection is closed."""
        self._set_link("down")

    def reconnect(self) -> None:
        """Take the link up again."""
        self._set_link("up")

    def _set_link(self, state: str) -> None:
        command = ["ip", "-n", self.name, "link", "set", LINK, state]
        subprocess.run(command, check=True)

    def pids(self, words: str) -> list[int]:
        """Return the processes of the machine whose command line has these words."""
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
        """Run a command as a user of this machine, and return its output."""
        return subprocess.run(
            ["ip", "netns", "exec", self.name, *command],
            env={**self.environment, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=1000,
        )

    def listening(self) -> set[int]:
        """Return the TCP ports that other machines can reach."""
        out = self.run("ss", "-Hltn").stdout
        found = [line.split()[3].rsplit(":", 1) for line in out.splitlines()]
        return {
            int(port)
            for address, port in found
            if not address.startswith(("127.", "[::1]"))
        }


def _sources() -> list[str]:
    """Return the folders in which this Python finds our packages."""
    code = f"import importlib.util as u; print([s.origin for s in map(u.find_spec, {list_packages()}) if s])"
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
    """A head with one CPU that also runs tasks, and a larger worker."""

    head: Machine
    worker: Machine
    shared: Path
    working_dir: Path

    def submit(
        self, *command: str, wait: bool = True, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        """Run `ray job submit --working-dir .` in a folder like this repository."""
        flags = [] if wait else ["--no-wait"]
        return self.head.run(
            str(BIN / "ray"), "job", "submit", f"--address=http://{self.head.address}:8265",
            f"--working-dir={self.working_dir}", *flags, "--", *command, **environment,
        )  # fmt: skip

    def wait(self, num_nodes: int, timeout_s: float = 600) -> None:
        """Wait until the head reports this number of machines."""
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
        """Return the number of machines that are alive, or 0 before the head answers."""
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
        "RAY_worker_niceness": "0",  # Ray's default of 15 waits for the other tests
        "CORPUSMILL_CACHE": str(cache),
        # Each process of a job would otherwise compile the kernels: two minutes of CPU.
        "NUMBA_CACHE_DIR": os.environ["NUMBA_CACHE_DIR"],
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
    for name, address, role, given, more in roles:
        own = folder / role
        shutil.copytree(own_cache, own / "cache")
        machines.append(
            Machine(
                name,
                address,
                own,
                environment,
                f"ray-{role}.service",
                {**given, "NODE_IP": address},
                more,
            )
        )
    working_dir = folder / "working-dir"
    for package in (*list_packages(), "configs"):
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
    """Create both namespaces and a cable between them."""
    one, two = names
    commands = [f"ip netns add {name}" for name in names]
    commands += [f"ip link add {LINK} netns {one} type veth peer name {LINK} netns {two}"]
    for name, address in zip(names, addresses, strict=True):
        commands += [
            f"ip -n {name} addr add {address}/24 dev {LINK}",
            f"ip -n {name} link set {LINK} up",
            f"ip -n {name} link set lo up",
        ]
    for command in commands:
        subprocess.run(command.split(), check=True)
