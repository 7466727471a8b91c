"""Free TCP ports, and the sockets on which processes listen, read from /proc."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import re
import secrets
import socket
from collections.abc import Iterable
from pathlib import Path

LISTEN = "0A"  # a state of include/net/tcp_states.h

# Above the ports that Ray gives to its workers.
LOWEST_PORT = 20_000


def find_free_ports(number: int) -> list[int]:
    """Return ports for servers that a test starts soon, and may restart.

    The kernel gives none of them to a connection or to a socket that asks for any port. Such a
    port could be taken before its server listens.
    """
    local_range = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text()
    num_ports = int(local_range.split()[0]) - LOWEST_PORT
    found: list[int] = []
    while len(found) < number:
        # Not by `random`: pytest-randomly gives all test processes the same seed.
        port = LOWEST_PORT + secrets.randbelow(num_ports)
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            if port not in found:
                found.append(port)
    return found


def list_listening(pids: Iterable[int]) -> set[tuple[str, int]]:
    """Address and port of each socket on which one of the processes listens."""
    inodes: set[str] = set()
    for pid in pids:
        inodes |= _list_inodes(pid)
    found: set[tuple[str, int]] = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == LISTEN and fields[9] in inodes:
                address, port = fields[1].split(":")
                found.add((_read_address(address), int(port, 16)))
    return found


def is_loopback(address: str) -> bool:
    """Whether only this machine can reach the address."""
    parsed = ipaddress.ip_address(address)
    mapped = getattr(parsed, "ipv4_mapped", None)
    return (mapped or parsed).is_loopback


def _list_inodes(pid: int) -> set[str]:
    found: set[str] = set()
    with contextlib.suppress(FileNotFoundError):
        for descriptor in os.scandir(f"/proc/{pid}/fd"):
            with contextlib.suppress(FileNotFoundError):
                found |= set(re.findall(r"socket:\[(\d+)\]", os.readlink(descriptor.path)))
    return found


def _read_address(text: str) -> str:
    """The address of eight hexadecimal digits per word, whose bytes are in reverse order."""
    words = [bytes.fromhex(text[i : i + 8])[::-1] for i in range(0, len(text), 8)]
    return str(ipaddress.ip_address(b"".join(words)))
