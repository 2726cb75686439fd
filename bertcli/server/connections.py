"""Connections that are closed when their client stalls, or sends what is not HTTP."""

from __future__ import annotations

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

STALLED_SECONDS = 30.0  # without a whole request header, or without reading an answer


class TimedConnection(H11Protocol):
    """A connection of uvicorn with time limits.

    uvicorn has them for idle connections only, not for those that send a header byte by byte or
    do not read their answers.
    """

    header_timer: asyncio.TimerHandle | None = None
    answer_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Wait for a request."""
        super().connection_made(transport)
        self.await_request()

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        super().on_response_complete()
        self.await_request()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timers."""
        for timer in (self.header_timer, self.answer_timer):
            if timer:
                timer.cancel()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """Answer what is not HTTP; if it is the body of a request, its answer is dropped.

        uvicorn would still send that answer, and h11 raises an error for it.
        """
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            super().send_400_response(msg)
        else:
            self.transport.close()

    def pause_writing(self) -> None:
        """Wait for the client to read."""
        super().pause_writing()
        self.answer_timer = self.loop.call_later(STALLED_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        """Go on after the client has read."""
        if self.answer_timer:
            self.answer_timer.cancel()
        super().resume_writing()

    def await_request(self) -> None:
        """Close the connection unless a request begins in time."""
        if self.header_timer:
            self.header_timer.cancel()
        self.header_timer = self.loop.call_later(STALLED_SECONDS, self.close_if_idle)

    def close_if_idle(self) -> None:
        """Close the connection if no request is being answered."""
        if self.cycle is None or self.cycle.response_complete:
            self.transport.abort()
