"""Attempts to reach the network, or a service of this machine."""

from __future__ import annotations

from typing import Any


def connect_to_loopback(bait: dict[str, Any]) -> None:
    """Connect to a server on this machine."""
    import socket

    socket.create_connection(("127.0.0.1", bait["port"]), timeout=1).close()


def connect_outside(bait: dict[str, Any]) -> None:
    """Connect to the address that this machine has on the network."""
    import socket

    socket.create_connection((bait["address"], bait["port"]), timeout=1).close()


def send_a_datagram(bait: dict[str, Any]) -> None:
    """Send a datagram."""
    import socket

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.sendto(b"harm", ("127.0.0.1", bait["datagrams"]))


def ask_for_a_name(bait: dict[str, Any]) -> None:
    """Ask for a host by name."""
    import socket

    assert socket.getaddrinfo("localhost.localdomain", 80) or socket.getaddrinfo("example.org", 80)


def connect_to_a_socket_file(bait: dict[str, Any]) -> None:
    """Connect to a service by its socket in the file system."""
    import socket

    with socket.socket(socket.AF_UNIX) as client:
        client.connect(bait["socket"])


def connect_to_an_abstract_socket(bait: dict[str, Any]) -> None:
    """Connect to a service by a socket that has no file."""
    import socket

    with socket.socket(socket.AF_UNIX) as client:
        client.connect("\0" + bait["mark"])


def listen_raw(bait: dict[str, Any]) -> None:
    """Listen to all traffic."""
    import socket

    kinds = ((socket.AF_PACKET, socket.SOCK_RAW, 3), (socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP))
    opened = []
    for family, kind, protocol in kinds:
        try:
            opened.append(socket.socket(family, kind, protocol))
        except OSError:
            continue
    assert opened


def talk_to_the_host(bait: dict[str, Any]) -> None:
    """Open a kind of socket that no network namespace holds back, or one that configures the network."""
    import socket

    opened = []
    for family in ("AF_VSOCK", "AF_NETLINK", "AF_ALG"):
        try:
            opened.append(socket.socket(getattr(socket, family), socket.SOCK_RAW if family == "AF_NETLINK" else 1))
        except (OSError, AttributeError):
            continue
    assert opened
