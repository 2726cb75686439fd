"""Bind the address, serve until a signal, and finish what was accepted."""

from __future__ import annotations

import logging
import signal
import socket
from collections.abc import Callable
from contextlib import suppress
from ipaddress import ip_address
from time import monotonic
from types import FrameType

import uvicorn

from bertcli.errors import OutputError, UsageError, option
from bertcli.io.system_calls import erase_interrupt_echo
from bertcli.server.app import ServerSettings, Service
from bertcli.server.connections import TimedConnection
from bertcli.server.requests import RequestError
from bertcli.server.served_model import ServedModel

GRACE_SECONDS = 0.3  # after a signal, in which clients may still connect
IDLE_SECONDS = 1.0  # after a signal, in which those that are connected may send a last request


class DrainingServer(uvicorn.Server):
    """A server that answers all requests after a signal, then ends."""

    def __init__(self, service: Service, ready: Callable[[], None]) -> None:
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
            )
        )
        self.service = service
        self.ready = ready
        self.signal_time: float | None = None
        self.is_hurried = False

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to accept connections, and say so."""
        await super().startup(sockets)
        self.ready()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Answer what arrives in a moment, end the connections, and stop.

        A second signal fails what waits for results, a third one waits for nothing.
        """
        if sig == signal.SIGINT:
            erase_interrupt_echo()
        if self.signal_time is None:
            self.signal_time = monotonic()
        elif not self.is_hurried:
            self.is_hurried = True
            self.service.batcher.fail_all(RequestError("the server was stopped", status=503))
        else:
            self.force_exit = True
        self.service.is_stopping = True

    async def on_tick(self, counter: int) -> bool:
        """Return True if the server should stop, as after the grace that follows a signal."""
        if self.signal_time is not None:
            grace = IDLE_SECONDS if self.server_state.connections else GRACE_SECONDS
            if monotonic() > self.signal_time + grace:
                self.should_exit = True
        return await super().on_tick(counter)


def serve(model: ServedModel, settings: ServerSettings, announce: Callable[[str], None]) -> None:
    """Serve a model until SIGINT or SIGTERM; ``announce`` gets the address when it is ready.

    Raises UsageError for an address of other machines without a key, OutputError for one that
    cannot be bound, BertcliError for a model that cannot be opened.
    """
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
    with bound_socket(settings) as listener:
        service = Service(model, settings)
        host, port = listener.getsockname()[:2]
        address = f"http://{f'[{host}]' if ':' in host else host}:{port}"
        DrainingServer(service, lambda: announce(address)).run([listener])


def bound_socket(settings: ServerSettings) -> socket.socket:
    """Return a socket that is bound to the address, but does not listen yet."""
    host = settings.host
    if settings.api_key == "":
        raise UsageError(f"{option('api_key')} is empty", "give a key of several characters")
    try:
        found = socket.getaddrinfo(host, settings.port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as unknown:
        raise UsageError(f"{option('host', host)}: {unknown}") from None
    found.sort(key=lambda info: info[0] != socket.AF_INET)  # localhost: first as most clients do
    if settings.api_key is None and not all(
        ip_address(str(info[4][0]).partition("%")[0]).is_loopback for info in found
    ):
        raise UsageError(
            f"{option('host', host)} can be reached from other machines, and needs "
            f"{option('api_key')}",
            f"give {option('api_key', 'KEY')}, or leave out {option('host')}",
        )
    family, _, protocol, _, address = found[0]
    # asyncio sets TCP_NODELAY for sockets of this protocol only: without it, answers of two packets
    # wait 40 ms for the client's delayed acknowledgement.
    listener = socket.socket(family, socket.SOCK_STREAM, protocol)
    with suppress(OSError):
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
    except OSError as failed:
        listener.close()
        raise OutputError(
            f"{host}:{settings.port}: {failed.strerror or failed}",
            f"give another {option('port')}, or {option('port', 0)} for a free one",
        ) from None
    return listener
