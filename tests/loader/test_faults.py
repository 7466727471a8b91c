"""The proxy of the tests closes what it opens, whenever it is closed."""

from __future__ import annotations

import contextlib
import socket

from tests.loader.faults import FaultProxy


def test_a_proxy_that_closes_while_clients_connect_leaves_no_socket_open() -> None:
    """An open socket is an unraisable warning, which is an error in these tests."""
    with socket.create_server(("127.0.0.1", 0), backlog=100) as target:
        for _ in range(5):
            proxy = FaultProxy(target.getsockname()[1])
            with contextlib.ExitStack() as clients:
                for _ in range(64):
                    address = ("127.0.0.1", proxy.port)
                    clients.enter_context(socket.create_connection(address))
                proxy.close()
