"""Attacks that talk to somebody: every family of sockets, and what can stand in for one."""

from sandbox.attacks.attack import Attack, Family, system_call


def _socket(name: str, statement: str, success: str, **rest: object) -> Attack:
    program = f'import os, socket\ndef attack():\n    {statement}\n    return "breached"'
    return Attack(name, success, "system-call filter", program, **rest)  # type: ignore[arg-type]


FAMILY = Family(
    "sockets",
    "reach the network or another process through a socket",
    (
        _socket(
            "TCP to a server that listens",
            "socket.create_connection(('127.0.0.1', @port@), 1)",
            "the connection arrives",
            succeeds_without=("system-call filter", "Landlock"),
        ),
        _socket(
            "a datagram to a server that listens",
            "socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', @port@))",
            "the datagram arrives",
            succeeds_without=("system-call filter",),
        ),
        _socket(
            "TCP without a connection (fast open)",
            "socket.socket().sendto(b'x', 0x20000000, ('127.0.0.1', @port@))",
            "data arrives",
        ),
        _socket("listening", "socket.create_server(('127.0.0.1', 0))", "others can connect"),
        _socket(
            "IPv6",
            "socket.socket(socket.AF_INET6)",
            "a socket exists",
            succeeds_without=("system-call filter",),
        ),
        _socket(
            "an abstract unix socket of the host",
            "socket.socket(socket.AF_UNIX).connect('\\0@abstract@')",
            "the connection arrives",
            succeeds_without=("system-call filter", "Landlock"),
        ),
        _socket(
            "a unix socket with a path (such as Docker's)",
            "socket.socket(socket.AF_UNIX).connect('/var/run/docker.sock')",
            "whoever reaches Docker is root",
        ),
        _socket(
            "a pair of sockets",
            "socket.socketpair()",
            "a way to pass descriptors",
            succeeds_without=("system-call filter",),
        ),
        _socket("raw IP", "socket.socket(socket.AF_INET, socket.SOCK_RAW, 1)", "forged packets"),
        _socket("the network card's packets", "socket.socket(socket.AF_PACKET, socket.SOCK_RAW)", "traffic is read"),
        _socket(
            "netlink",
            "socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)",
            "network settings are known",
            succeeds_without=("system-call filter",),
        ),
        _socket("kernel cryptography", "socket.socket(38, socket.SOCK_SEQPACKET)", "more of the kernel to attack"),
        _socket("the hypervisor (vsock)", "socket.socket(40, socket.SOCK_STREAM)", "the machine's host is reached"),
        _socket("Bluetooth", "socket.socket(31, socket.SOCK_SEQPACKET, 0)", "more of the kernel to attack"),
        _socket("a bus of cars (CAN)", "socket.socket(29, socket.SOCK_RAW, 1)", "more of the kernel to attack"),
        _socket("express data path", "socket.socket(44, socket.SOCK_RAW)", "packets past the kernel"),
        _socket("asking a name server", "socket.socket(2, socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', 53))",
                "data leaves in questions about names"),
        system_call("io_uring", "sockets and files past the filter", 425, 425, "8, None",
                    succeeds_without=("system-call filter",)),
        system_call("accepting on an inherited descriptor", "a connection is taken", 43, 202, "0, None, None"),
        system_call("sending a descriptor (sendmsg)", "a descriptor leaves", 46, 211, "1, None, 0"),
    ),
)  # fmt: skip
