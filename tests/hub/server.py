"""A small hub on the loopback address: lists repositories, serves files and ranges, has large files at another origin.

It keeps a log of requests, and can be told to answer wrongly.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

LARGE = (".safetensors", ".bin", ".gguf", ".h5")
_API = re.compile(r"/api/models/([^/]+/[^/]+)(?:/revision/([^/]+))?")
_FILE = re.compile(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)")


@dataclass(frozen=True)
class Request:
    """One line of the log. `origin`: "hub" or "store"; `sent`: bytes of the body; `name`: the file, "" for the API."""

    origin: str
    method: str
    path: str
    name: str
    range: str | None
    token: str | None
    sent: int


@dataclass(frozen=True)
class Answer:
    """What is answered in place of the right thing."""

    status: int
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""


@dataclass
class Repository:
    """Commits by revision, files by commit. `sizes` overrides what the list says."""

    revisions: dict[str, str] = field(default_factory=dict)
    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)
    sizes: dict[str, int | None] = field(default_factory=dict)

    def push(self, files: Mapping[str, bytes], revision: str = "main") -> str:
        told = sorted((name, _etag(data)) for name, data in files.items())
        commit = hashlib.sha1(repr(told).encode()).hexdigest()
        self.commits[commit] = dict(files)
        self.revisions[revision] = commit
        return commit

    def commit(self, revision: str) -> str | None:
        return revision if revision in self.commits else self.revisions.get(revision)


class Hub:
    """`answers`: by the beginning of a path or the name of a file. `ranges`: off, whole files are sent for ranges.

    `cut`: after so many bytes of a file's body the connection ends.
    """

    def __init__(self) -> None:
        self.repositories: dict[str, Repository] = {}
        self.log: list[Request] = []
        self.answers: dict[str, Answer] = {}
        self.cut: dict[str, int] = {}
        self.ranges = True
        self.hub = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self, "hub"))
        self.store = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self, "store"))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.hub.server_port}"

    @property
    def store_url(self) -> str:
        return f"http://127.0.0.1:{self.store.server_port}"

    def repository(self, name: str, files: Mapping[str, bytes]) -> Repository:
        self.repositories[name] = Repository()
        self.repositories[name].push(files)
        return self.repositories[name]

    def asked(self, suffix: str = "") -> list[Request]:
        return [request for request in self.log if request.name.endswith(suffix)]


@contextmanager
def running() -> Iterator[Hub]:
    hub = Hub()
    servers = (hub.hub, hub.store)
    threads = [threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True) for server in servers]
    for thread in threads:
        thread.start()
    try:
        yield hub
    finally:
        for server in servers:
            server.shutdown()
            server.server_close()


def _handler(hub: Hub, origin: str) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            path = urlsplit(self.path).path
            api, file = _API.fullmatch(path), _FILE.fullmatch(path)
            name = unquote(file.group(3)) if file else ""
            wrong = next((a for key, a in hub.answers.items() if path.startswith(key) or name == key), None)
            if wrong is not None:
                self.answer(name, wrong)
            elif api:
                self.answer(name, _listing(hub, api.group(1), unquote(api.group(2) or "main")))
            elif file:
                self.file(file.group(1), unquote(file.group(2)), name)
            else:
                self.answer(name, Answer(404))

        do_HEAD = do_GET

        def file(self, repository: str, revision: str, name: str) -> None:
            found = hub.repositories.get(repository)
            commit = found.commit(revision) if found else None
            if found is None or commit is None:
                missing = "RevisionNotFound" if found else "RepoNotFound"
                return self.answer(name, Answer(404, {"X-Error-Code": missing}))
            data = found.commits[commit].get(name)
            if data is None:
                return self.answer(name, Answer(404, {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": commit}))
            etag = _etag(data)
            headers = {"X-Repo-Commit": commit, "ETag": etag, "Accept-Ranges": "bytes"}
            if origin == "hub" and name.endswith(LARGE):
                linked = {"X-Linked-Size": str(len(data)), "X-Linked-ETag": etag}
                return self.answer(name, Answer(302, {**headers, **linked, "Location": hub.store_url + self.path}))
            asked = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range") or "") if hub.ranges else None
            if asked is None:
                return self.answer(name, Answer(200, headers, data))
            first, last = (int(number) for number in asked.groups())
            part = data[first : last + 1]
            where = {"Content-Range": f"bytes {first}-{first + len(part) - 1}/{len(data)}"}
            return self.answer(name, Answer(206, {**headers, **where}, part))

        def answer(self, name: str, answer: Answer) -> None:
            body = b"" if self.command == "HEAD" else answer.body
            body = body[: hub.cut.get(name, len(body))]
            token = self.headers.get("Authorization")
            asked_range = self.headers.get("Range")
            hub.log.append(Request(origin, self.command, self.path, name, asked_range, token, len(body)))
            self.send_response(answer.status)
            for key, value in {"Content-Length": str(len(answer.body)), **answer.headers}.items():
                self.send_header(key, value)
            self.end_headers()
            try:
                self.wfile.write(body)
            except OSError:  # whoever asked has read enough
                self.close_connection = True
            if len(body) < len(answer.body) and self.command != "HEAD":
                self.close_connection = True

        def log_message(self, *args: Any) -> None: ...

    return Handler


def _etag(data: bytes) -> str:
    """Told by its beginning: a file may be a mapped one of many gigabytes."""
    return f'"{hashlib.sha256(data[: 1 << 20] + str(len(data)).encode()).hexdigest()}"'


def _listing(hub: Hub, name: str, revision: str) -> Answer:
    repository = hub.repositories.get(name)
    if repository is None:
        return Answer(404, {"X-Error-Code": "RepoNotFound"})
    commit = repository.commit(revision)
    if commit is None:
        return Answer(404, {"X-Error-Code": "RevisionNotFound"})
    siblings = []
    for file, data in repository.commits[commit].items():
        size = repository.sizes.get(file, len(data))
        siblings.append({"rfilename": file} | ({} if size is None else {"size": size}))
    body = json.dumps({"id": name, "sha": commit, "siblings": siblings}).encode()
    return Answer(200, {"Content-Type": "application/json"}, body)
