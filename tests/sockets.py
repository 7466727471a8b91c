"""The TCP sockets on which processes listen, read from /proc."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import re
from collections.abc import Iterable
from pathlib import Path

LISTEN = "0A"  # a state of include/net/tcp_states.h


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
