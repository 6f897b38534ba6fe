"""The guard of tests/conftest.py really stands between a test and the network."""

import socket

import pytest


def test_a_connection_to_another_machine_is_refused() -> None:
    with socket.socket() as sock, pytest.raises(AssertionError, match="stay on this machine"):
        sock.connect(("192.0.2.1", 80))


def test_a_datagram_to_another_machine_is_refused() -> None:
    with (
        socket.socket(type=socket.SOCK_DGRAM) as sock,
        pytest.raises(AssertionError, match="stay on this machine"),
    ):
        sock.sendto(b"", ("192.0.2.1", 53))


def test_a_name_look_up_is_refused() -> None:
    with pytest.raises(AssertionError, match="stay on this machine"):
        socket.getaddrinfo("example.org", 443)


def test_loopback_is_reached() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        socket.create_connection(server.getsockname()).close()
