"""The plain client."""

from __future__ import annotations

import http.client
import json
import socket
import threading
import time
from dataclasses import dataclass
from typing import Any, Iterable, Iterator, Mapping, Optional
from urllib.parse import quote, urlencode

from ._made import Operations
from ._transport import BASE, Problem, Transport, Unreachable, problem

__all__ = ["Client", "Event", "Mirror", "Problem", "Unreachable"]

_AGAIN = (502, 503, 504)  # a controller that does not lead, or not yet


@dataclass(frozen=True)
class Event:
    """One event. name is a kind ("job", "guest", "host", "move", "checkpoint", "policy") with the thing as the lists have
    it; "gone" with the kind and the id of what was removed; "reset": what was known no longer counts; "ready": all is sent."""

    name: str
    data: Any
    id: str


class Mirror:
    """What is known of the cluster after some events: mirror["host"]["host1"]."""

    def __init__(self) -> None:
        self.things: dict[str, dict[str, Any]] = {}
        self.ready = False

    def take(self, event: Event) -> None:
        """Takes one event."""
        if event.name == "reset":
            self.things, self.ready = {}, False
        elif event.name == "ready":
            self.ready = True
        elif event.name == "gone":
            self.things.get(event.data["kind"], {}).pop(event.data["id"], None)
        else:
            self.things.setdefault(event.name, {})[event.data.get("id", "")] = event.data

    def __getitem__(self, kind: str) -> dict[str, Any]:
        return self.things.get(kind, {})


class Client(Operations):
    """A client of one controller.

    address: "unix:/run/pagurus/controller.sock", "HOST:PORT" (TLS), "https://HOST:PORT" or, on this machine,
    "http://127.0.0.1:7480". Without it: PAGURUS_CONTROLLER, then the login of this account, then this machine's socket.

    token: of `pagurus token create --access` (or PAGURUS_TOKEN). It also says which cluster it is of, so that it is sent to no
    other. Without it the certificate of `pagurus login` counts, and over the socket the account of this process.

    Its methods may be called by several threads at once; each has a connection of its own.
    """

    def __init__(self, address: Optional[str] = None, *, token: Optional[str] = None, credentials: Optional[str] = None,
                 authority: Optional[str] = None, timeout: float = 60, tries: int = 5) -> None:
        self._transport = Transport(address, token, credentials, authority)
        self._timeout, self._tries = timeout, max(1, tries)
        self._mine = threading.local()
        self._lock = threading.Lock()
        self._open: set[http.client.HTTPConnection] = set()

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def close(self) -> None:
        """Closes all connections. Whoever watches stops."""
        with self._lock:
            all_, self._open = self._open, set()
        for connection in all_:
            _cut(connection)

    # The streams, which the document describes and _made.py leaves out.

    def read_output(self, job: str, stream: str = "stdout", *, offset: int = 0, wait: bool = False) -> tuple[bytes, int, bool]:
        """Some output from an offset: the bytes, the next offset, and whether nothing follows."""
        query = {"offset": str(offset), "wait": "true" if wait else "false"}
        response, body = self._send("GET", f"/jobs/{quote(job, safe='')}/output/{quote(stream, safe='')}", query, None, {})
        return body, int(response.getheader("Pagurus-Next-Offset", "0")), response.getheader("Pagurus-Ended") == "true"

    def output(self, job: str, stream: str = "stdout") -> Iterator[bytes]:
        """All output of a job, until it ends."""
        offset, ended = 0, False
        while not ended:
            data, offset, ended = self.read_output(job, stream, offset=offset, wait=True)
            if data:
                yield data

    def write_input(self, job: str, data: bytes, *, offset: int = 0, eof: bool = False) -> int:
        """Gives a job's program input from an offset; the answer is the next one, which may be smaller than all of data."""
        query = {"offset": str(offset), "eof": "true" if eof else "false"}
        _, body = self._send("POST", f"/jobs/{quote(job, safe='')}/input", query, data, {"Content-Type": "application/octet-stream"})
        return int(json.loads(body)["offset"])

    def back_up(self) -> bytes:
        """All that the controller keeps."""
        return self._send("GET", "/backup", {}, None, {})[1]

    def export_usage(self, *, since: Optional[str] = None, by: Optional[str] = None, user: Optional[str] = None, host: Optional[str] = None) -> str:
        """What users, jobs or hosts used, as comma-separated values. Like `pagurus usage --csv`."""
        return self._export("csv", {"since": since, "by": by, "user": user, "host": host})

    def export_sacct(self, *, since: Optional[str] = None, user: Optional[str] = None) -> str:
        """A line for each job that has ended, as Slurm's sacct writes it. Like `pagurus usage --sacct`."""
        return self._export("sacct", {"since": since, "user": user})

    def _export(self, form: str, query: Mapping[str, Optional[str]]) -> str:
        given = {name: value for name, value in query.items() if value is not None}
        return self._send("GET", f"/usage/{form}", given, None, {})[1].decode()

    def wait(self, job: str, timeout: Optional[float] = None) -> Any:
        """A job once it has ended."""
        end = None if timeout is None else time.monotonic() + timeout
        while True:
            row = self.wait_for_job(job)
            if row["state"] == "ended":
                return row
            if end is not None and time.monotonic() >= end:
                raise TimeoutError(f"job {job} has not ended")

    def events(self, *, kinds: Iterable[str] = (), last_id: str = "", reconnect: bool = True) -> Iterator[Event]:
        """What changes, from all that is there on. It connects again where it was cut off, and goes on there."""
        pause = 0.1
        while True:
            try:
                for event in self._stream(list(kinds), last_id):
                    pause = 0.1
                    last_id = event.id
                    if event.name:
                        yield event
            except (Unreachable, Problem) as e:
                if not reconnect or isinstance(e, Problem) and e.status not in _AGAIN:
                    raise
            if not reconnect:
                return
            time.sleep(pause)
            pause = min(2 * pause, 2.0)

    def _stream(self, kinds: list[str], last_id: str) -> Iterator[Event]:
        connection = self._transport.connect(45)  # a silent stream says every 15 s that it is there
        headers = self._transport.headers() | {"Accept": "text/event-stream"}
        if last_id:
            headers["Last-Event-ID"] = last_id
        path = BASE + "/events" + ("?" + urlencode({"kinds": ",".join(kinds)}) if kinds else "")
        with self._lock:
            self._open.add(connection)
        try:
            connection.request("GET", path, headers=headers)
            response = connection.getresponse()
            if response.status != 200:
                raise problem(response, response.read())
            name = data = ""
            id_ = last_id
            while line := response.readline():
                field, _, value = line.decode().rstrip("\r\n").partition(":")
                value = value.removeprefix(" ")
                if field == "id":
                    id_ = value
                elif field == "event":
                    name = value
                elif field == "data":
                    data = value
                elif field == "" and not value:
                    yield Event(name, json.loads(data) if data else None, id_)
                    name = data = ""
        except (OSError, http.client.HTTPException) as e:
            raise Unreachable(f"the controller at {self._transport.address} was cut off: {e}") from e
        finally:
            with self._lock:
                self._open.discard(connection)
            connection.close()

    # What the methods in _made.py call.

    def _call(self, method: str, path: str, query: Mapping[str, str], body: Any, key: Optional[str]) -> Any:
        headers = {}
        data = None
        if body is not None:
            data, headers["Content-Type"] = json.dumps(body).encode(), "application/json"
        if key is not None:
            headers["Idempotency-Key"] = key
        return json.loads(self._send(method, path, query, data, headers)[1])

    def _send(self, method: str, path: str, query: Mapping[str, str], body: Optional[bytes], headers: Mapping[str, str]) -> tuple[http.client.HTTPResponse, bytes]:
        """Makes a request. What only reads, or names itself by a key, is made again while no controller leads."""
        again = method == "GET" or "Idempotency-Key" in headers
        where = BASE + path + ("?" + urlencode(query) if query else "")
        for left in reversed(range(self._tries if again else 1)):
            try:
                return self._send_once(method, where, body, headers)
            except (Problem, Unreachable) as e:
                if left == 0 or isinstance(e, Problem) and e.status not in _AGAIN:
                    raise
                time.sleep(0.5)
        raise AssertionError("not reached")

    def _send_once(self, method: str, where: str, body: Optional[bytes], headers: Mapping[str, str]) -> tuple[http.client.HTTPResponse, bytes]:
        connection: Optional[http.client.HTTPConnection] = getattr(self._mine, "connection", None)
        fresh = connection is None or connection.sock is None
        if connection is None:
            connection = self._mine.connection = self._transport.connect(self._timeout)
            with self._lock:
                self._open.add(connection)
        try:
            connection.request(method, where, body=body, headers={**self._transport.headers(), **headers})
            response = connection.getresponse()
            text = response.read()
        except (OSError, http.client.HTTPException) as e:
            connection.close()
            if not fresh and method == "GET":  # it was idle, and the controller has closed it
                return self._send_once(method, where, body, headers)
            raise Unreachable(f"no controller answers at {self._transport.address}: {e}") from e
        if response.status != 200:
            raise problem(response, text)
        return response, text


def _cut(connection: http.client.HTTPConnection) -> None:
    """Ends a connection that another thread may be reading from."""
    if connection.sock is not None:
        try:
            connection.sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # it has ended
    connection.close()
