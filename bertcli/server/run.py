"""Bind the address, serve until a signal, and finish what was accepted."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from ipaddress import ip_address
from time import monotonic
from types import FrameType
from typing import Any

import uvicorn

from bertcli.errors import LOG, OutputError, UsageError, option
from bertcli.io.system_calls import erase_interrupt_echo, ignore_new_connections, reuse_closing_port
from bertcli.server.app import ServerSettings, Service
from bertcli.server.connections import STALLED_SECONDS, TimedConnection
from bertcli.server.requests import RequestError
from bertcli.server.served_model import ServedModel

GRACE_SECONDS = 0.3  # after a signal, in which clients may still connect
IDLE_SECONDS = 1.0  # after that, in which those that are connected may send a last request
HURRIED_SECONDS = 0.5  # after a second signal, in which errors may be sent
LAST_SECONDS = 1.5  # after a second signal, in which the server may end by itself
MISSING_ADDRESS_ERRORS = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)  # also: no IPv6


class DrainingServer(uvicorn.Server):
    """A server that, after a signal, answers the requests that arrive in a moment, then ends.

    Its listening sockets are closed before its connections are: a client that has just connected,
    and whose request is on its way, would lose it otherwise.
    """

    def __init__(
        self,
        service: Service,
        listeners: list[socket.socket],
        ready: Callable[[], None],
    ) -> None:
        super().__init__(
            uvicorn.Config(
                service.app(),
                http=TimedConnection,
                ws="none",
                loop="asyncio",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                timeout_keep_alive=int(STALLED_SECONDS),
            )
        )
        self.service = service
        self.listeners = listeners
        self.ready = ready
        self.loop: asyncio.AbstractEventLoop | None = None
        self.signal_time: float | None = None
        self.is_accepting = True
        self.is_hurried = False

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to accept connections, and say so."""
        self.loop = asyncio.get_running_loop()
        self.loop.set_exception_handler(report_failure)
        await super().startup(sockets)
        self.ready()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Note a signal: from the first one on, `on_tick` ends the server.

        A second one fails the requests that wait for results, closes all connections after
        `HURRIED_SECONDS`, and ends the process without cleanup after `LAST_SECONDS`.
        """
        if sig == signal.SIGINT:
            erase_interrupt_echo()
        if self.signal_time is None:
            self.signal_time = monotonic()
        elif not self.is_hurried:
            self.is_hurried = True
            self.service.batcher.fail_all(RequestError("the server was stopped", status=503))
            if self.loop:
                self.loop.call_soon_threadsafe(
                    self.loop.call_later, HURRIED_SECONDS, self.disconnect
                )
            # Python would wait for threads that compute: nobody wants their results.
            end = threading.Timer(LAST_SECONDS, os._exit, [0])
            end.daemon = True
            end.start()
        self.service.is_stopping = True

    def disconnect(self) -> None:
        """Close all connections: the server ends when none is left."""
        for connection in [*self.server_state.connections]:
            connection.transport.abort()

    async def on_tick(self, counter: int) -> bool:
        """Return True if the server should stop.

        After a signal: stop accepting after the grace time, then stop when no connection is left or
        after the idle time. A second signal skips both times.
        """
        if self.signal_time is not None:
            seconds = monotonic() - self.signal_time
            if self.is_accepting:
                if seconds > GRACE_SECONDS or self.is_hurried:
                    await self.stop_accepting()
            elif (
                not self.server_state.connections
                or seconds > GRACE_SECONDS + IDLE_SECONDS
                or self.is_hurried
            ):
                self.should_exit = True
        return await super().on_tick(counter)

    async def stop_accepting(self) -> None:
        """Accept the connections that are waiting, and close the sockets.

        The operating system resets connections that wait at a socket when it is closed, so no new
        ones may come meanwhile.
        """
        loop = asyncio.get_running_loop()
        self.is_accepting = False
        waiting = []
        for listener, server in zip(self.listeners, self.servers, strict=True):
            ignore_new_connections(listener)
            while True:
                try:
                    waiting.append(listener.accept()[0])
                except ConnectionAbortedError:
                    continue
                except OSError:  # none is left
                    break
            server.close()  # closes the listener too
        for connection in waiting:
            await loop.connect_accepted_socket(self.new_connection, connection)

    def new_connection(self) -> TimedConnection:
        """Return a connection as those that uvicorn makes."""
        return TimedConnection(self.config, self.server_state, self.lifespan.state)


def report_failure(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log a failure outside of requests in one line, for example too many open files."""
    LOG.warn(f"{context['message']}: {context.get('exception')}")


def serve(model: ServedModel, settings: ServerSettings, announce: Callable[[str], None]) -> None:
    """Serve a model until SIGINT or SIGTERM; ``announce`` gets the address when it is ready.

    Raises UsageError for a host or key that `host_addresses` refuses, OutputError for an address
    that cannot be bound, BertcliError for a model that cannot be opened.
    """
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
    with bound_sockets(settings) as listeners:
        service = Service(model, settings)
        host, port = listeners[0].getsockname()[:2]
        address = f"http://{f'[{host}]' if ':' in host else host}:{port}"
        DrainingServer(service, listeners, lambda: announce(address)).run(listeners)


@contextmanager
def bound_sockets(settings: ServerSettings) -> Iterator[list[socket.socket]]:
    """Yield a socket for each address of the host, IPv4 first; they do not listen yet.

    All have the same port. An address that this machine lacks, such as one of IPv6, is left out if
    there is another one. With port 0, an address on which the chosen port is in use is left out
    too.

    Raises UsageError as `host_addresses` does, OutputError if an address cannot be bound.
    """
    port = settings.port
    listeners: list[socket.socket] = []
    failure: OSError | None = None
    with ExitStack() as stack:
        for family, protocol, address in host_addresses(settings):
            try:
                # asyncio sets TCP_NODELAY for sockets of this protocol only: without it, answers of
                # two packets wait 40 ms for the client's delayed acknowledgement.
                listener = socket.socket(family, socket.SOCK_STREAM, protocol)
                stack.enter_context(listener)
                reuse_closing_port(listener)
                listener.bind((address[0], port, *address[2:]))
            except OSError as failed:
                is_chosen_port_taken = failed.errno == errno.EADDRINUSE and port != settings.port
                if failed.errno not in MISSING_ADDRESS_ERRORS and not is_chosen_port_taken:
                    raise cannot_bind(settings, failed) from None
                failure = failed
            else:
                listeners.append(listener)
                port = listener.getsockname()[1]
        if failure and not listeners:
            raise cannot_bind(settings, failure)
        yield listeners


def cannot_bind(settings: ServerSettings, failed: OSError) -> OutputError:
    """Return the error for an address that cannot be bound."""
    hint = f"give another {option('port')}, or {option('port', 0)} for a free one"
    if failed.errno in MISSING_ADDRESS_ERRORS:
        hint = f"give another {option('host')}: this machine does not have that address"
    return OutputError(f"{settings.host}:{settings.port}: {failed.strerror or failed}", hint)


def host_addresses(settings: ServerSettings) -> list[tuple[int, int, Any]]:
    """Return family, protocol and socket address of each address of the host, IPv4 first.

    Raises UsageError for a key that is empty or has unprintable characters, an unknown host, and an
    address that other machines reach without a key.
    """
    host = settings.host
    if settings.api_key is not None and not settings.api_key.strip():
        raise UsageError(f"{option('api_key')} is empty", "give a key of several characters")
    if not (settings.api_key or "").strip().isprintable():
        raise UsageError(
            f"{option('api_key')} has characters that no header can have", "give another key"
        )
    try:
        found = socket.getaddrinfo(host, settings.port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as unknown:
        raise UsageError(f"{option('host', host)}: {unknown}") from None
    if settings.api_key is None and not all(
        ip_address(str(info[4][0]).partition("%")[0]).is_loopback for info in found
    ):
        raise UsageError(
            f"{option('host', host)} can be reached from other machines, and needs "
            f"{option('api_key')}",
            f"give {option('api_key', 'KEY')}, or leave out {option('host')}",
        )
    found.sort(key=lambda info: info[0] != socket.AF_INET)  # as most clients do for localhost
    addresses = [(family, protocol, address) for family, _, protocol, _, address in found]
    return list(dict.fromkeys(addresses))  # files of hosts may list an address twice
