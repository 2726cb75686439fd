"""Keys, limits, clients that stall or leave, and the end of the server."""

import errno
import http.client
import json
import signal
import socket
import sys
import threading
import time

import numpy as np
import pytest
from front import DEADLINE, bad, call, until
from served import IMPATIENT, running

from bertcli.errors import OutputError
from bertcli.io.system_calls import ignore_new_connections

SLOW = {"inputs": ["word " * 250] * 400}  # some seconds


@pytest.fixture(scope="module")
def locked():
    """A server with a key, and low limits."""
    argv = ("--api-key", "sécret", "--max-body", 20_000, "--max-batch-texts", 4)
    with running(*argv, "--cors", "https://a.example/") as served:
        yield served


def bearer(key):
    return {"authorization": b"Bearer " + key.encode()}


def test_the_key(locked):
    assert locked.ask("/embed", {"inputs": "a"}).error == (
        "an API key is needed; send the header Authorization: Bearer KEY"
    )
    for wrong in (bearer("secret"), bearer(""), {"authorization": "sécret".encode()}):
        answer = locked.ask("/embed", {"inputs": "a"}, headers=wrong)
        assert (answer.status, answer.headers["www-authenticate"]) == (401, "Bearer")
        assert "the API key is wrong" in answer.error
    assert locked.ask("/metrics").status == 401
    assert locked.ask("/no/such/path").status == 401
    assert locked.ask("/embed").status == 401
    assert locked.ask("/health").status == 200  # for those who watch over servers
    assert locked.ask("/embed", {"inputs": "a"}, headers=bearer("sécret")).status == 200
    assert locked.ask("/info", headers=bearer("sécret")).status == 200


def test_other_hosts_need_a_key():
    refused = bad("serve", "--host", "0.0.0.0", code=2)
    assert refused.error == (
        "--host 0.0.0.0 can be reached from other machines, and needs --api-key"
    )
    assert bad("serve", "--host", "0.0.0.0", code=2, BERTCLI_API_KEY="").error
    assert bad("serve", "--api-key", " ", code=2).error == "--api-key is empty"
    assert "no header" in bad("serve", "--api-key", "a\nb", code=2).error
    assert bad("serve", "--host", "no such host", code=2).error.startswith("--host no such host")
    assert "--host" in bad("serve", "--host", "192.0.2.1", "--api-key", "k").hint  # of no machine
    with running("--host", "0.0.0.0", env={"BERTCLI_API_KEY": "voilà\n"}) as served:
        assert served.ask("/info").status == 401
        assert served.ask("/info", headers=bearer("voilà")).status == 200
    with running("--host", "localhost") as served:
        assert served.ask("/info").status == 200


# A host with several addresses, one of them twice, and one that this machine does not have.
SEVERAL_ADDRESSES = """
import socket
from bertcli.__main__ import run
addresses_of = socket.getaddrinfo
def several(host, port, **options):
    hosts = ["2001:db8::1", "::1", "127.0.0.1", "127.0.0.1"]
    return [address for host in hosts for address in addresses_of(host, port, **options)]
socket.getaddrinfo = several
run()
"""


def bind_ipv6():
    """Return a socket that is bound to a free port of ::1; None without IPv6."""
    listener = socket.socket(socket.AF_INET6)
    try:
        listener.bind(("::1", 0))
    except OSError:
        listener.close()
        return None
    return listener


def test_all_addresses_of_a_host_are_served():
    program = ["-c", SEVERAL_ADDRESSES]
    with running("--host", "several", env={"BERTCLI_API_KEY": "k"}, program=program) as served:
        assert served.host == f"127.0.0.1:{served.port}"
        hosts = ["127.0.0.1"]
        if listener := bind_ipv6():
            listener.close()
            hosts.append("::1")
        for host in hosts:
            connection = http.client.HTTPConnection(host, served.port, timeout=DEADLINE)
            answer = served.ask("/info", headers=bearer("k"), connection=connection)
            assert answer.status == 200
            connection.close()


def test_a_port_that_is_taken_on_one_address_of_a_host(monkeypatch):
    taken = bind_ipv6()
    if taken is None:
        pytest.skip("no IPv6")
    addresses_of = socket.getaddrinfo
    monkeypatch.setattr(
        "socket.getaddrinfo",
        lambda host, port, **options: [
            *addresses_of("127.0.0.1", port, **options),
            *addresses_of("::1", port, **options),
        ],
    )
    with taken:
        taken.listen()
        port = taken.getsockname()[1]
        refused = bad("serve", "--host", "localhost", "--port", port)
    assert refused.error.startswith(f"localhost:{port}: ")


def test_a_free_port_that_is_taken_on_another_address(monkeypatch):
    """The address is left out, because the port that was chosen means nothing to the user."""
    from bertcli.server import run

    class Taken(socket.socket):
        def bind(self, address):
            if address[0] == "127.0.0.2":
                raise OSError(errno.EADDRINUSE, "in use")
            super().bind(address)

    monkeypatch.setattr("socket.socket", Taken)
    addresses = [(socket.AF_INET, 6, (host, 0)) for host in ("127.0.0.1", "127.0.0.2")]
    monkeypatch.setattr(run, "host_addresses", lambda settings: addresses)
    with run.bound_sockets(run.ServerSettings(port=0)) as listeners:
        assert [listener.getsockname()[0] for listener in listeners] == ["127.0.0.1"]
    with pytest.raises(OutputError), run.bound_sockets(run.ServerSettings(port=8080)):
        pass


def test_names_of_other_machines_are_refused_without_a_key(server, locked):
    for host in ("evil.example", "evil.example:80", "127.0.0.1.evil.example"):
        answer = server.ask("/embed", {"inputs": "a"}, headers={"host": host})
        assert (answer.status, answer.json["error"]["code"]) == (403, "other_host")
        assert server.ask("/nowhere", headers={"host": host}).status == 403
        headers = bearer("sécret") | {"host": host}
        assert locked.ask("/embed", {"inputs": "a"}, headers=headers).status == 200
    for host in ("localhost", "LOCALHOST:1", "127.0.0.1:80", "[::1]:80", "me", "a.localhost"):
        assert server.ask("/embed", {"inputs": "a"}, headers={"host": host}).status == 200


def test_a_port_that_is_taken(server):
    message = bad("serve", "--port", server.port).error
    assert message.startswith(f"127.0.0.1:{server.port}: ")


def test_web_pages(server, locked):
    origin = {"origin": "https://a.example", "access-control-request-method": "POST"}
    for served, allowed in ((server, None), (locked, "https://a.example")):
        headers = served.ask("/embed", method="OPTIONS", headers=origin).headers
        assert headers.get("access-control-allow-origin") == allowed
        headers = served.ask("/health", headers={"origin": "https://a.example"}).headers
        assert headers.get("access-control-allow-origin") == allowed
        assert ("x-truncated" in headers.get("access-control-expose-headers", "")) == bool(allowed)
    other = {"origin": "https://b.example"}
    assert "access-control-allow-origin" not in locked.ask("/health", headers=other).headers


def chunked(content):
    """Yield a body in parts, as it is sent without a length."""
    for start in range(0, len(content), 1000):
        yield content[start : start + 1000]


def test_large_bodies_and_many_texts(locked):
    key = bearer("sécret")
    large = json.dumps({"inputs": "a" * 30_000}).encode()
    answer = locked.ask("/embed", large, headers=key)
    assert (answer.status, answer.error) == (413, "the body has more than 20000 bytes")
    connection = locked.connect()
    connection.request("POST", "/embed", chunked(large * 9), key, encode_chunked=True)
    response = connection.getresponse()
    assert (response.status, b"20000 bytes" in response.read()) == (413, True)
    connection.close()
    answer = locked.ask("/embed", {"inputs": ["a"] * 5}, headers=key)
    assert (answer.status, "inputs has 5 texts" in answer.error) == (413, True)
    small = json.dumps({"inputs": "a"}).encode()
    connection = locked.connect()
    connection.request("POST", "/embed", chunked(small), key, encode_chunked=True)
    assert connection.getresponse().status == 200
    connection.close()


def test_a_full_queue():
    with running("--max-queue", 1) as served, background(served, SLOW):
        until(lambda: served.metric("bertcli_queue_requests") == 1)
        answer = served.ask("/embed", {"inputs": "a"})
        assert (answer.status, answer.headers["retry-after"]) == (429, "1")
        assert answer.json["error"]["type"] == "rate_limit_error"
        assert served.ask("/health").status == 200


class background:
    """Send a request from a thread, and leave without its answer unless `wait` is called."""

    def __init__(self, served, body, path="/embed"):
        self.connection = served.connect()
        self.connection.request("POST", path, json.dumps(body))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.connection.close()


def test_a_short_request_waits_for_one_batch_of_a_long_one(server):
    server.good("/embed", {"inputs": ["word " * 250] * 16})
    start = time.monotonic()
    server.good("/embed", {"inputs": ["word " * 250] * 16})  # a batch
    batch = time.monotonic() - start
    with background(server, SLOW):
        until(lambda: server.metric("bertcli_queue_requests") == 1)
        waits = []
        for _ in range(5):
            start = time.monotonic()
            server.good("/embed", {"inputs": "short"})
            waits.append(time.monotonic() - start)
        assert server.metric("bertcli_queue_requests") == 1
    assert min(waits) < 3 * batch + 0.5  # seconds; 400 texts are 25 batches


def test_answers_on_a_kept_connection_do_not_wait_for_acknowledgements(server):
    connection = server.connect()
    seconds = []
    for _ in range(40):
        start = time.monotonic()
        server.good("/decode", {"ids": [101, 7632, 102]}, connection=connection)
        seconds.append(time.monotonic() - start)
    connection.close()
    assert sorted(seconds)[10] < 0.035  # a delayed acknowledgement takes 0.04


def test_what_a_client_that_leaves_has_in_the_queue_is_dropped(server):
    texts = server.metric("bertcli_texts_total")
    leaving = [background(server, SLOW) for _ in range(3)]
    until(lambda: server.metric("bertcli_texts_total") > texts)
    for client in leaving:
        client.connection.close()
    until(lambda: server.metric("bertcli_queue_requests") == 0)
    server.good("/embed", {"inputs": "short"})
    assert server.metric("bertcli_texts_total") - texts < 1200


def test_clients_that_stall_are_dropped():
    with running(program=["-c", IMPATIENT]) as served:
        address = ("127.0.0.1", served.port)
        silent = socket.create_connection(address)
        headers = socket.create_connection(address)
        body = socket.create_connection(address)
        headers.sendall(b"POST /embed HTTP/1.1\r\nHost: a\r\n")
        body.sendall(b"POST /embed HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n{")
        drip(headers)
        assert silent.recv(100) == b""
        assert b" 408 " in body.recv(1000)
        assert served.ask("/embed", {"inputs": "a"}).status == 200
        large = json.dumps({"inputs": ["a"] * 300}).encode()
        deaf = socket.socket()
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        deaf.connect(address)
        head = f"POST /embed_all HTTP/1.1\r\nHost: a\r\nContent-Length: {len(large)}\r\n\r\n"
        deaf.sendall(head.encode() + large)
        until(lambda: served.metric('bertcli_requests_total{route="/embed_all"') == 1)
        assert served.stop() == 0  # it would not end while the client may still read
        for client in (silent, headers, body, deaf):
            client.close()


def drip(client):
    """Send a header byte by byte until the server closes the connection."""
    start = time.monotonic()
    client.settimeout(0.1)
    while time.monotonic() - start < 30:
        try:
            client.sendall(b"x")
            if client.recv(100) == b"":
                return
        except TimeoutError:
            continue
        except OSError:
            return
    raise AssertionError("the connection is still open")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_requests_that_were_accepted_are_answered_after_a_signal(number):
    bodies = [{"inputs": [f"{client} {'word ' * 200}"] * 4} for client in range(8)]
    with running() as served:
        answers = {}

        def ask(client):
            answers[client] = served.ask("/embed", bodies[client])

        threads = [threading.Thread(target=ask, args=(client,)) for client in range(8)]
        for thread in threads:
            thread.start()
        until(lambda: served.metric("bertcli_queue_requests") == 8)
        assert served.stop(number) == 0
        for thread in threads:
            thread.join()
        assert [answers[client].status for client in range(8)] == [200] * 8
        assert np.shape(answers[0].json) == (4, 384)
        with pytest.raises(OSError):
            served.connect().connect()


def test_nothing_is_lost_at_the_end_under_load():
    """Clients ask on open connections until one is refused: each request that was sent is answered.

    A connection may be closed while it is idle, or refused: those requests were not accepted.
    """
    with running() as served:
        lost = []
        answered = []

        def client():
            connection = served.connect()
            while True:
                try:
                    connection.connect() if connection.sock is None else None
                except OSError:
                    return
                try:
                    answer = served.ask("/embed", {"inputs": "a text"}, connection=connection)
                    answered.append(answer.status)
                except OSError as error:
                    lost.append(error)
                    return
                except Exception as error:  # of http.client
                    lost.append(error)
                    return

        threads = [threading.Thread(target=client) for _ in range(8)]
        for thread in threads:
            thread.start()
        until(lambda: len(answered) > 50)
        assert served.stop() == 0
        for thread in threads:
            thread.join()
        assert {*answered} == {200}
        assert lost == []


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no such filter")
def test_at_the_end_connections_that_wait_are_served_and_new_ones_refused():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = listener.getsockname()
        with socket.create_connection(address) as waiting:
            waiting.sendall(b"a request")
            ignore_new_connections(listener)
            with socket.socket() as late, pytest.raises(TimeoutError):
                late.settimeout(0.2)
                late.connect(address)
            accepted, _ = listener.accept()
            with accepted:
                assert accepted.recv(100) == b"a request"
                accepted.sendall(b"an answer")
                assert waiting.recv(100) == b"an answer"
        threading.Timer(0.2, listener.close).start()
        with socket.socket() as late, pytest.raises(ConnectionRefusedError):
            late.connect(address)


def test_two_signals_stop_it_at_once():
    with running() as served, background(served, {"inputs": ["word " * 250] * 2000}) as client:
        until(lambda: served.metric("bertcli_queue_requests") == 1)
        served.process.send_signal(signal.SIGINT)
        time.sleep(0.5)
        assert served.stop(signal.SIGINT) == 0
        answer = client.connection.getresponse()
        assert (answer.status, b"the server was stopped" in answer.read()) == (503, True)


@pytest.mark.parametrize("content", [b"{", b""])
def test_two_signals_wait_for_no_body(content):
    with running() as served, socket.create_connection(("127.0.0.1", served.port)) as client:
        client.sendall(b"POST /embed HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\n" + content)
        time.sleep(0.3)
        served.process.send_signal(signal.SIGINT)
        time.sleep(0.5)
        start = time.monotonic()
        assert served.stop(signal.SIGINT) == 0
        assert time.monotonic() - start < 10  # it would wait 30 s for the body


def test_two_signals_wait_for_no_computation():
    with running() as served, background(served, {"inputs": "!" * 4_000_000}, path="/tokenize"):
        time.sleep(2)
        served.process.send_signal(signal.SIGINT)
        time.sleep(0.3)
        start = time.monotonic()
        assert served.stop(signal.SIGINT) == 0
        assert time.monotonic() - start < 10  # of about a minute


def test_what_it_prints(monkeypatch):
    with running("-v") as served:
        served.ask("/embed", {"inputs": "a"})
        assert served.stop() == 0
        assert "note: POST /embed 200 " in served.messages
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    monkeypatch.setattr("bertcli.cli.commands.serve.find_spec", lambda name: None)
    done = call("serve")
    assert done.error == "serve needs starlette and uvicorn"
    assert "bertcli[serve]" in done.hint


def test_a_model_that_is_missing_or_broken(tmp_path):
    assert "nowhere" in bad("serve", "-m", tmp_path / "nowhere").error
    (tmp_path / "config.json").write_text("{}")
    assert bad("serve", "-m", tmp_path).error
