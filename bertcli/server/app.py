"""The application: from HTTP requests to routes and back, with limits, keys and errors.

    app = Service(model, ServerSettings()).app()       # for uvicorn or any other ASGI server

The event loop reads requests and writes answers. Other threads parse and tokenize all but short
bodies, make all but short answers, and open models; the thread of the batcher runs the model.
"""

from __future__ import annotations

import asyncio
import hmac
import os
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from ipaddress import ip_address
from time import monotonic
from typing import Any

import numpy as np
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route as HttpRoute

from bertcli.errors import LOG, BertcliError, InputError, in_python, out_of_memory
from bertcli.formats.openai_batch import to_json
from bertcli.server.batching import Batcher
from bertcli.server.metrics import Metrics
from bertcli.server.requests import RequestError, read_body
from bertcli.server.routes import POSTED, Route, Work, info
from bertcli.server.served_model import UNSUPPORTED, EmbeddingRunner, NotOpenError, ServedModel

BODY_SECONDS = 30.0  # to send a body
HEALTH_SECONDS = 10.0  # until a model that does not answer is unhealthy
RETRY_SECONDS = 1  # of the header Retry-After
MAX_BATCH_TOKENS = 1 << 16  # of models whose engine sets no limit
# What the event loop does itself, because it takes less time than a change of threads.
FEW_BYTES = 1 << 12  # of a body that is parsed and tokenized
FEW_NUMBERS = 1 << 12  # of an answer that is written
# Names of headers of answers.
TRUNCATED = "x-truncated"
TRUNCATED_COUNT = "x-truncated-count"
COMPUTE_TOKENS = "x-compute-tokens"
MAX_LISTED = 256  # indices in the first of them
CLIENT_GONE = 499  # nginx's status for a client that has closed the connection
# Status -> type of error, in OpenAI's words and in those of text-embeddings-inference.
ERROR_TYPES = {
    401: ("authentication_error", "Unauthorized"),
    403: ("permission_error", "Unauthorized"),
    404: ("not_found_error", "Validation"),
    424: ("invalid_request_error", "Backend"),
    429: ("rate_limit_error", "Overloaded"),
    500: ("server_error", "Backend"),
    503: ("server_error", "Unhealthy"),
}

Report = Callable[[Request], Awaitable[Response]]  # answers a request


@dataclass(frozen=True)
class ServerSettings:
    """Address, keys and limits."""

    host: str = "127.0.0.1"
    port: int = 8080  # 0: a free one
    api_key: str | None = None
    max_queue: int = 512  # requests that may wait
    max_batch_texts: int = 2048  # texts of a request
    max_body: int = 8 << 20  # bytes
    cors: tuple[str, ...] = ()  # origins of web pages that may send requests


class Service:
    """Answers requests with one model."""

    def __init__(self, model: ServedModel, settings: ServerSettings) -> None:
        self.model = model
        self.settings = settings
        self.metrics = Metrics()
        runner = model.open()
        head = runner.embedder if isinstance(runner, EmbeddingRunner) else runner.head
        budget = min(head.runtime.budget, MAX_BATCH_TOKENS)
        self.batcher = Batcher(budget, self.metrics)
        self.key = None if settings.api_key is None else settings.api_key.strip().encode()
        self.is_stopping = False

    def app(self) -> Starlette:
        """Return the ASGI application."""
        routes: list[tuple[str, Report, str]] = [
            (path, partial(self.run_route, route), "POST") for path, route in POSTED.items()
        ]
        reports = {
            "/health": self.health,
            "/info": self.info,
            "/metrics": self.show_metrics,
            "/v1/models": self.models,
        }
        routes += [(path, report, "GET") for path, report in reports.items()]
        paths = [
            HttpRoute(spelled, partial(self.answer, report, path), methods=[method])
            for path, report, method in routes
            for spelled in dict.fromkeys((path, f"{path.rstrip('/')}/"))
        ]
        cors = Middleware(
            CORSMiddleware,
            allow_origins=[origin.rstrip("/") for origin in self.settings.cors],
            allow_methods=["GET", "POST"],
            allow_headers=["*"],
            expose_headers=[TRUNCATED, TRUNCATED_COUNT, COMPUTE_TOKENS, "retry-after"],
        )
        return Starlette(
            routes=paths,
            middleware=[cors] if self.settings.cors else [],
            exception_handlers={HTTPException: self.unknown_path},
            lifespan=self.lifespan,
        )

    @asynccontextmanager
    async def lifespan(self, app: Starlette) -> AsyncIterator[None]:
        """Run the batcher while the application runs."""
        task = asyncio.create_task(self.batcher.work())
        yield
        task.cancel()
        self.batcher.thread.shutdown(wait=False, cancel_futures=True)

    async def answer(self, report: Report, label: str, request: Request) -> Response:
        """Return the response of a report, or that of its error.

        It is counted with a label, the path of the route, and logged.
        """
        start = monotonic()
        try:
            self.refuse_strangers(request)
            response = await report(request)
        except ClientDisconnect:
            response = Response(status_code=CLIENT_GONE)
        except Exception as failure:  # of any kind: it is one request's, and is logged
            response = failed_response(failure)
        if self.is_stopping:
            response.headers["connection"] = "close"
        seconds = monotonic() - start
        self.metrics.count_request(label, response.status_code, seconds)
        LOG.detail(
            f"{request.method} {request.url.path} {response.status_code} {1000 * seconds:.1f} ms"
        )
        return response

    def refuse_strangers(self, request: Request) -> None:
        """Raise RequestError without the key; without a key, for names of other machines.

        A web page could have a name of its own resolve to this machine, to read answers.
        """
        if self.key is None:
            host = request.headers.get("host", "")
            if not is_local_name(host) and host.rpartition(":")[0] != self.settings.host:
                raise RequestError(
                    f"requests for {host!r} need an API key", status=403, code="other_host"
                )
            return
        if request.url.path == "/health":
            return
        given = request.headers.get("authorization", "")
        scheme, _, token = given.partition(" ")
        is_same = hmac.compare_digest(token.strip(" \t").encode("latin-1"), self.key)
        if scheme.lower() != "bearer" or not is_same:
            raise RequestError(
                "the API key is wrong" if given else "an API key is needed",
                "send the header Authorization: Bearer KEY",
                status=401,
                code="invalid_api_key",
                headers={"www-authenticate": "Bearer"},
            )

    async def run_route(self, route: Route, request: Request) -> Response:
        """Read a request, run its texts, and return the answer."""
        content = await self.body_in_time(request)
        if self.metrics.queue >= self.settings.max_queue:
            raise RequestError(
                f"{self.metrics.queue} requests are waiting",
                "try again later",
                status=429,
                code="queue_full",
                headers={"retry-after": str(RETRY_SECONDS)},
            )
        self.metrics.queue += 1
        answering = asyncio.ensure_future(self.route_response(route, content))
        leaving = asyncio.ensure_future(until_gone(request))
        try:
            await asyncio.wait([answering, leaving], return_when=asyncio.FIRST_COMPLETED)
            if not answering.done():
                raise ClientDisconnect
            return answering.result()
        finally:
            self.metrics.queue -= 1
            answering.cancel()
            leaving.cancel()

    async def route_response(self, route: Route, content: bytes) -> Response:
        """Return the answer to a body."""
        work = await self.parsed(route, content)
        results: list[Any] = []
        if work.runner is not None:
            results = await self.batcher.results(work.rows, work.runner)
        is_long = len(content) > FEW_BYTES
        if is_long or sum(np.size(result) for result in results) > FEW_NUMBERS:
            answer = await asyncio.to_thread(lambda: to_json(work.answer(results)))
        else:
            answer = to_json(work.answer(results))
        headers = {COMPUTE_TOKENS: str(work.tokens)} if work.rows else {}
        if work.truncated:
            headers[TRUNCATED] = ",".join(map(str, work.truncated[:MAX_LISTED]))
            headers[TRUNCATED_COUNT] = str(len(work.truncated))
        return Response(answer, headers=headers, media_type="application/json")

    async def parsed(self, route: Route, content: bytes) -> Work:
        """Parse and tokenize a body, in another thread if it is long or opens a model."""
        most_texts = self.settings.max_batch_texts
        if len(content) <= FEW_BYTES:
            with suppress(NotOpenError):
                return route(self.model.if_open, read_body(content), most_texts)
        return await asyncio.to_thread(lambda: route(self.model, read_body(content), most_texts))

    async def body_in_time(self, request: Request) -> bytes:
        """Return the body. Raises RequestError if it is too large, or takes too long."""
        try:
            return await asyncio.wait_for(self.limited_body(request), BODY_SECONDS)
        except asyncio.TimeoutError:
            raise RequestError(
                f"the body did not arrive within {BODY_SECONDS:g} seconds",
                status=408,
                code="timeout",
                headers={"connection": "close"},
            ) from None

    async def limited_body(self, request: Request) -> bytes:
        """Return the body. Raises RequestError once more bytes than allowed have arrived."""
        max_bytes = self.settings.max_body
        declared = request.headers.get("content-length", "0")
        content = bytearray()
        if not declared.isdecimal() or int(declared) <= max_bytes:
            async for chunk in request.stream():
                content += chunk
                if len(content) > max_bytes:
                    break
            else:
                return bytes(content)
        raise RequestError(
            f"the body has more than {max_bytes} bytes", status=413, code="body_too_large"
        )

    async def health(self, request: Request) -> Response:
        """Return 200 if the model answers."""
        runner = self.model.open()
        inputs: Any = ["a"] if isinstance(runner, EmbeddingRunner) else [("a", "b")]
        rows = await asyncio.to_thread(runner.encoded, inputs, None)
        try:
            await asyncio.wait_for(self.batcher.results(rows, runner), HEALTH_SECONDS)
        except asyncio.TimeoutError:
            raise RequestError("the model does not answer", status=503) from None
        return json_response({"status": "ok"})

    async def info(self, request: Request) -> Response:
        """Return facts about the model, and the limits."""
        settings = self.settings
        facts = await asyncio.to_thread(
            lambda: info(
                self.model, most_requests=settings.max_queue, most_texts=settings.max_batch_texts
            )
        )
        return json_response(facts)

    async def models(self, request: Request) -> Response:
        """Return the list of models in OpenAI's format."""
        served = {"id": self.model.name, "object": "model", "created": 0, "owned_by": "bertcli"}
        return json_response({"object": "list", "data": [served]})

    async def show_metrics(self, request: Request) -> Response:
        """Return the metrics."""
        return PlainTextResponse(self.metrics.exposition(), media_type="text/plain; version=0.0.4")

    async def unknown_path(self, request: Request, failed: Exception) -> Response:
        """Return the error for a path or a method that does not exist."""
        status = getattr(failed, "status_code", 404)
        headers = getattr(failed, "headers", None) or {}
        what = "is unknown" if status == 404 else f"does not take {request.method}"

        async def refuse(request: Request) -> Response:
            raise RequestError(
                f"the path {request.url.path} {what}", status=status, headers=headers
            )

        return await self.answer(refuse, "other", request)


def json_response(
    value: Any, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """Return a response with a JSON value."""
    return Response(to_json(value), status, headers, "application/json")


async def until_gone(request: Request) -> None:
    """Return once the client has closed the connection."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def is_local_name(host: str) -> bool:
    """Return True for an address, for a name without a dot, and for localhost, with any port.

    Names of machines on the internet have a dot.
    """
    name = host[: host.rindex(":")] if host.rpartition(":")[2].isdecimal() else host
    name = name.strip("[]")
    if "." not in name.rstrip(".") or name.rstrip(".").endswith(".localhost"):
        return True
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


def failed_response(failure: BaseException) -> Response:
    """Return the response for a failed request. Errors that are not expected are logged."""
    if isinstance(failure, BertcliError):
        return error_response(failure)
    if out_of_memory(failure):
        return error_response(RequestError("out of memory", status=503))
    LOG.warn(f"internal error: {type(failure).__name__}: {failure}")
    if os.environ.get("BERTCLI_DEBUG"):
        traceback.print_exception(failure)
    return error_response(RequestError("internal error", status=500))


def error_response(error: BertcliError) -> Response:
    """Return an error as OpenAI writes it, with the error_type of text-embeddings-inference."""
    message = in_python(error.marked)
    code = None
    headers: Mapping[str, str] = {}
    match error:
        case RequestError():
            status = error.status
            code = error.code
            headers = error.headers
            if error.hint:
                message = f"{message}; {error.hint}"
        case InputError():
            status = 400
        case _:  # of the model, for example a vector that is not finite
            status = UNSUPPORTED
    error_type, their_type = ERROR_TYPES.get(status, ("invalid_request_error", "Validation"))
    body: Mapping[str, Any] = {
        "error": {"message": message, "type": error_type, "code": code},
        "error_type": their_type,
    }
    return json_response(body, status, headers)
