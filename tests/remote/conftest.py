"""An S3 server on the loopback, and the credentials for it."""

import os
import time
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import chain, cycle
from ssl import SSLContext
from threading import Event, Lock, Thread
from typing import Any

import pytest

from decodeonce import remote

SECRET = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"


@pytest.fixture(scope="session")
def endpoint() -> Iterator[str]:
    """The URL of moto's S3 server."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


def credentials(endpoint: str) -> dict[str, str]:
    """Return the environment in which botocore finds the server and the credentials."""
    return {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ACCESS_KEY_ID": "AKIAIOSFODNN7EXAMPLE",
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_CONFIG_FILE": os.devnull,
    }


@pytest.fixture
def s3(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A client of the server, which has an empty bucket named "images"."""
    import boto3

    for name in list(os.environ):  # the user's own settings must not change a result
        if name.startswith("AWS_") or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    for name, value in credentials(endpoint).items():
        monkeypatch.setenv(name, value)
    client = boto3.client("s3")
    client.create_bucket(Bucket="images")
    yield client
    for item in client.list_objects_v2(Bucket="images").get("Contents", []):
        client.delete_object(Bucket="images", Key=item["Key"])
    client.delete_bucket(Bucket="images")


class Handler(BaseHTTPRequestHandler):
    """Answers HEAD as GET, but without the body, and prints nothing."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # otherwise the body waits 40 ms for the client to acknowledge the headers

    def do_HEAD(self) -> None:
        self.do_GET()

    @abstractmethod
    def do_GET(self) -> None:
        """Answer a request."""

    def answer(self, status: int, body: bytes, **headers: str) -> int:
        """Send an answer; return the number of bytes of the body that were sent. In names, _ stands for -."""
        self.send_response_only(status)
        for name, value in {"Content_Length": str(len(body)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        return self.wfile.write(body) if self.command != "HEAD" else 0

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@contextmanager
def serving(server: ThreadingHTTPServer) -> Iterator[str]:
    """Run a server; yield its URL."""
    with server:
        thread = Thread(target=server.serve_forever, args=[0.01])  # looks for the end this often
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


class Proxy(ThreadingHTTPServer):
    """Passes GET and HEAD on to the S3 server, late, and answers some requests with an error instead.

    Attributes:
        latency: Seconds before each answer.
        answers: Statuses of the next answers, in this order; 0 closes the connection, None passes the request on.
        requests: Path and range of each request that was passed on.
        signed: The header "Authorization" of each of them.
        arrived: Set with each of them.
    """

    daemon_threads = True
    request_queue_size = 256

    def __init__(self, endpoint: str, tls: SSLContext | None = None) -> None:
        super().__init__(("127.0.0.1", 0), Forwarder)
        self.upstream = endpoint.removeprefix("http://")
        self.url = f"{'https' if tls else 'http'}://127.0.0.1:{self.server_port}"
        if tls:
            self.socket = tls.wrap_socket(self.socket, server_side=True)
        self.latency = 0.0
        self.answers: Iterator[int | None] = iter(())
        self.requests: list[tuple[str, str | None]] = []
        self.signed: list[str | None] = []
        self.lock, self.arrived = Lock(), Event()


def failing(*, every: int) -> Iterator[int | None]:
    """Yield the answers of a server that fails at one of so many requests."""
    return chain.from_iterable([*[None] * (every - 1), status] for status in cycle((503, 0, 429)))


class Forwarder(Handler):
    """Handles a connection to the proxy."""

    server: Proxy

    def do_GET(self) -> None:
        time.sleep(self.server.latency)  # the latency of a network, not a wait for an event
        with self.server.lock:
            status = next(self.server.answers, None)
        if status == 0:
            self.close_connection = True
            return
        if status is not None:
            self.answer(status, b"")
            return
        self.server.requests.append((self.path, self.headers["Range"]))
        self.server.signed.append(self.headers["Authorization"])
        self.server.arrived.set()
        connection = HTTPConnection(self.server.upstream)
        with closing(connection):
            connection.request(self.command, self.path, headers=dict(self.headers))
            answer = connection.getresponse()
            own = ("connection", "transfer-encoding")
            headers = {name.title(): value for name, value in answer.getheaders() if name.lower() not in own}
            self.answer(answer.status, answer.read(), **{name.replace("-", "_"): headers[name] for name in headers})


@pytest.fixture
def proxy(s3: Any, endpoint: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    """A proxy before the S3 server; its clients are the file systems that a test makes."""
    with running(Proxy(endpoint), monkeypatch) as server:
        yield server


@contextmanager
def running(server: Proxy, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    """Run a proxy as the endpoint of S3."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", server.url)
    forget_server()
    with serving(server):
        yield server
    forget_server()


def forget_server() -> None:
    """Forget what is known of an endpoint, which is kept for the life of a process."""
    remote._checked.clear()
    remote._store.cache_clear()
    remote._s3_settings.cache_clear()
