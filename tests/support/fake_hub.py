"""A server on 127.0.0.1 that answers huggingface_hub like the hub, or with errors on request.

    with FakeHub() as hub:
        hub.add("owner/name", {"config.json": b"{}"})
        hub.add("datasets/owner/name", {"train.csv": b"text\n"})
        ... HF_ENDPOINT=hub.url ...
        hub.asked  # [("GET", "/api/models/owner/name", None), ...]

Its answers follow huggingface_hub 2.4 and https://huggingface.co/docs/hub/api: model information,
the file tree, and HEAD and GET of a file. Bodies are sent over plain HTTP. With `xet`, it claims
that they are in a chunk store, and refers the library to an empty one.
"""

import hashlib
import json
import os
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit


@dataclass
class Repository:
    """Revisions of a model or dataset (name -> commit -> files), and its access rights."""

    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)
    refs: dict[str, str] = field(default_factory=dict)
    token: str | None = None  # required token; without it, the model seems not to exist
    gated: bool = False  # the list of files is public, but the files are not readable


# Environment variables that decide where models and datasets are looked for.
HUB_VARIABLES = ("HF_", "HUGGING", "TRANSFORMERS_", "BERTCLI_", "XDG_CACHE_HOME")


def clear_hub_variables(monkeypatch):
    """Give a test an environment that says nothing of the hub."""
    for name in list(os.environ):
        if name.startswith(HUB_VARIABLES):
            monkeypatch.delenv(name)


class FakeHub:
    """The server. All attributes may be changed while it runs."""

    def __init__(self):
        self.models: dict[str, Repository] = {}
        self.moved: dict[str, str] = {}
        self.asked: list[tuple[str, str, str | None]] = []  # requests: method, path, Authorization
        self.status: dict[str, int] = {}  # substring of a path -> status of the answer
        self.stall: set[str] = set()  # files whose body stops half-way until `resume`
        self.cut: set[str] = set()  # files whose body ends half-way
        self.nonsense: str | None = None  # answer to every request, if set
        self.xet = False
        self.stalled, self.resume = threading.Event(), threading.Event()
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def __enter__(self):
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *_):
        self.resume.set()
        self.server.shutdown()
        self.server.server_close()

    def add(self, name: str, files: dict[str, bytes], revision: str = "main") -> str:
        """Commit `files` to a branch and return the commit."""
        content = json.dumps({k: v.decode("latin-1") for k, v in files.items()}) + revision
        commit = hashlib.sha1(content.encode()).hexdigest()
        repository = self.models.setdefault(name, Repository())
        repository.commits[commit] = files
        repository.refs[revision] = commit
        return commit

    def fetched(self) -> set[str]:
        """Return the files whose bodies were requested."""
        return {path.split("/resolve/")[1].split("/", 1)[1] for method, path, _ in self.asked
                if method == "GET" and "/resolve/" in path}  # fmt: skip


def _handler(hub: FakeHub):
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self):
            self.answer()

        def do_HEAD(self):
            self.answer()

        def answer(self):
            path = unquote(urlsplit(self.path).path)
            hub.asked.append((self.command, path, self.headers["Authorization"]))
            if hub.nonsense is not None:
                return self.reply(200, hub.nonsense)
            for part, status in hub.status.items():
                if part in path:
                    return self.reply(status)
            for old, new in hub.moved.items():
                if f"{path}/".startswith((f"/{old}/", f"/api/models/{old}/")):
                    return self.reply(307, Location=self.path.replace(old, new))
            if path.endswith("/xet-read-token"):
                headers = {
                    "Cas-Url": hub.url,
                    "Access-Token": "t",
                    "Token-Expiration": "9999999999",
                }
                return self.reply(200, **{f"X-Xet-{key}": value for key, value in headers.items()})
            if path.startswith("/api/models/"):
                return self.about(path.removeprefix("/api/models/"))
            if path.startswith("/api/datasets/"):
                return self.about(path.removeprefix("/api/"))
            name, found, rest = path.strip("/").partition("/resolve/")
            return self.file(name, *rest.split("/", 1)) if found else self.reply(404)

        def about(self, path: str):
            for word in ("/revision/", "/tree/"):
                name, found, revision = path.partition(word)
                if found:
                    break
            repository = self.readable(name)
            if repository is None:
                return None
            commit = self.commit(repository, revision or "main")
            if commit is None:
                return None
            files = repository.commits[commit]
            if "/tree/" in path:
                return self.reply(200, json.dumps([_entry(*item) for item in files.items()]))
            siblings = [{"rfilename": name} for name in files]
            return self.reply(200, json.dumps({"id": name, "sha": commit, "siblings": siblings}))

        def file(self, name: str, revision: str, file: str):
            repository = self.readable(name)
            if repository is None:
                return None
            if repository.gated:
                status = 403 if self.headers["Authorization"] else 401
                return self.reply(status, **{"X-Error-Code": "GatedRepo"})
            commit = self.commit(repository, revision)
            if commit is None:
                return None
            body = repository.commits[commit].get(file)
            if body is None:
                return self.reply(404, **{"X-Error-Code": "EntryNotFound"})
            etag = f'"{hashlib.sha1(body).hexdigest()}"'
            headers = {"ETag": etag, "X-Repo-Commit": commit}
            if hub.xet:
                headers |= {
                    "X-Xet-Hash": "ab" * 32,
                    "X-Xet-Refresh-Route": f"{hub.url}/xet-read-token",
                }
            return self.reply(200, body, file, **headers)

        def readable(self, name: str) -> Repository | None:
            repository = hub.models.get(name)
            sent = self.headers["Authorization"]
            if repository and repository.token in (None, (sent or "").removeprefix("Bearer ")):
                return repository
            # Like the real hub: 401 for anonymous requests, to hide names of private models.
            code = {"X-Error-Code": "RepoNotFound"} if sent else {}
            self.reply(404 if sent else 401, **code)
            return None

        def commit(self, repository: Repository, revision: str) -> str | None:
            commit = repository.refs.get(revision, revision)
            if commit in repository.commits:
                return commit
            self.reply(404, **{"X-Error-Code": "RevisionNotFound"})
            return None

        def reply(self, status: int, body: bytes | str = b"", file: str = "", **headers: str):
            body = body.encode() if isinstance(body, str) else body
            half = file in hub.stall | hub.cut and self.command == "GET"
            if half and self.headers["Range"]:
                self.close_connection = True
                return  # no answer to the attempt to resume
            self.send_response(status)
            for key, value in {**headers, "Content-Length": str(len(body))}.items():
                self.send_header(key, value)
            self.end_headers()
            if self.command == "HEAD":
                return
            self.wfile.write(body[: len(body) // 2] if half else body)
            if half:
                self.wfile.flush()
                self.close_connection = True
                if file in hub.stall:
                    hub.stalled.set()
                    hub.resume.wait(30)

        def log_message(self, *_):
            pass

    return Handler


def _entry(path: str, body: bytes) -> dict:
    oid = hashlib.sha1(body).hexdigest()
    return {"type": "file", "path": path, "size": len(body), "oid": oid}
