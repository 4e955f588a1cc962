"""The socket that connections come from, and how many may come."""

import errno
import os
import resource
import socket

MIN_FILES = 56  # with which a server has a few connections
UNREAD_BYTES, UNSENT_BYTES = 128 << 10, 64 << 10
SILENT_S = 60  # of a connection, before the kernel asks whether anybody is there


def raise_file_limit(wanted: int) -> None:
    """Let the process open so many files, or as many as it may, which connections have to fit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    if soft != resource.RLIM_INFINITY and max(soft, most) < MIN_FILES:
        raise OSError(
            errno.EMFILE,
            f"this process may open {most} files (ulimit -n); accepted: at least {MIN_FILES}",
        )


UNIX = "unix:"  # before the path of a socket, instead of a host


def bind(name: str, port: int) -> socket.socket:
    """The socket of a host and a port, which is taken from now on but not yet listened on."""
    if name.startswith(UNIX):
        return _bind_path(name.removeprefix(UNIX))
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            name, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise OSError(error.errno, f"host {name!r}: {error.strerror}") from None
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    bound_connections(listener)
    try:
        listener.bind(address)
    except OSError as error:
        listener.close()
        message = f"port {port} on {name} cannot be used: {os.strerror(error.errno or 0)}"
        raise OSError(error.errno, message) from None
    return listener


def _bind_path(path: str) -> socket.socket:
    """The socket of a path, which its user alone may reach; nothing may lie there."""
    listener = socket.socket(socket.AF_UNIX)
    try:
        listener.bind(path)
        os.chmod(path, 0o600)
    except OSError as error:
        listener.close()
        message = f"host {UNIX}{path}: {error.strerror or error}"
        raise OSError(error.errno or errno.EINVAL, message) from None
    return listener


def address_of(listener: socket.socket, host: str) -> str:
    """What a client of ``host`` writes: http://HOST:PORT or unix:PATH."""
    if host.startswith(UNIX):
        return host
    return f"http://{host}:{listener.getsockname()[1]}"


def bound_connections(listener: socket.socket) -> None:
    """Have the kernel hold little for each connection, and notice clients that are gone for good.

    Without this it takes megabytes of an answer that the client does not read, and megabytes of a
    request that the server has not read yet.
    """
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, UNREAD_BYTES)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        (socket.TCP_KEEPIDLE, SILENT_S),
        (socket.TCP_KEEPINTVL, SILENT_S // 4),
        (socket.TCP_KEEPCNT, 4),
    ):
        listener.setsockopt(socket.IPPROTO_TCP, option, value)
