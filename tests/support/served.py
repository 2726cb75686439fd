"""A server in a process of its own, and requests to it."""

import http.client
import json
import signal
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from types import MappingProxyType
from typing import NamedTuple
from urllib.parse import urlsplit

from front import DEADLINE, environment

# Runs the command line with short time limits.
IMPATIENT = """
import bertcli.server.app as app, bertcli.server.connections as connections
from bertcli.__main__ import run
app.BODY_SECONDS = connections.STALLED_SECONDS = 1.0
run()
"""
PROGRAM = ["-m", "bertcli"]


class Answer(NamedTuple):
    """A response."""

    status: int
    content: bytes
    headers: dict

    @property
    def json(self):
        return json.loads(self.content)

    @property
    def error(self):
        """The message, after checking the form of the error."""
        assert self.status >= 400, self
        error = self.json["error"]
        assert {*error} == {"message", "type", "code"}
        assert "Traceback" not in error["message"]
        return error["message"]


class Server:
    """A running server."""

    def __init__(self, *argv, program=PROGRAM, env=MappingProxyType({})):
        self.log = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `running`
        command = [sys.executable, *program, "serve", "--port", "0", *map(str, argv)]
        self.process = subprocess.Popen(
            command,
            env=environment(env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self.log,
        )
        self.address = self.process.stdout.readline().decode().strip()
        assert self.address.startswith("http://"), self.messages
        self.host = urlsplit(self.address).netloc
        self.port = urlsplit(self.address).port

    @property
    def messages(self):
        """What the server has written to stderr."""
        self.log.seek(0)
        return self.log.read().decode()

    def connect(self):
        return http.client.HTTPConnection(self.host, timeout=DEADLINE)

    def ask(self, path, body=None, *, method=None, headers=MappingProxyType({}), connection=None):
        """Send a request; a body that is not bytes is sent as JSON. Return the response."""
        if body is not None and not isinstance(body, bytes):
            body = json.dumps(body).encode()
        method = method or ("GET" if body is None else "POST")
        connected = connection or self.connect()
        connected.request(method, path, body, headers)
        response = connected.getresponse()
        answer = Answer(response.status, response.read(), dict(response.getheaders()))
        if connection is None:
            connected.close()
        return answer

    def good(self, path, body=None, **options):
        """Return the JSON of an answer, after checking that it is no error."""
        answer = self.ask(path, body, **options)
        assert answer.status == 200, answer
        return answer.json

    def metric(self, name):
        """Return the sum of a metric over its labels."""
        lines = self.ask("/metrics").content.decode().splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.startswith(name))

    def memory(self):
        """Return the resident memory in MB."""
        with open(f"/proc/{self.process.pid}/status") as file:
            line = next(line for line in file if line.startswith("VmRSS"))
        return int(line.split()[1]) / 1024

    def stop(self, number=signal.SIGTERM):
        """Stop the server; return its exit code."""
        self.process.send_signal(number)
        code = self.process.wait(DEADLINE)
        self.process.stdout.close()
        return code


@contextmanager
def running(*argv, **options):
    """Run a server, and check at the end that it has written no traceback."""
    server = Server(*argv, **options)
    try:
        yield server
    finally:
        code = server.process.poll()
        code = server.stop() if code is None else code
        messages = server.messages
        server.log.close()
    assert code == 0, messages
    assert "Traceback" not in messages
    assert "internal error" not in messages
