"""The client for asyncio. Each call is made by a thread, so that there is one implementation of the protocol."""

from __future__ import annotations

import asyncio
import threading
from typing import Any, AsyncIterator, Iterable, Mapping, Optional

from ._client import Client, Event
from ._made import AsyncOperations


class AsyncClient(AsyncOperations):
    """A Client whose methods are awaited; see there."""

    def __init__(self, address: Optional[str] = None, **options: Any) -> None:
        self._client = Client(address, **options)

    async def __aenter__(self) -> "AsyncClient":
        return self

    async def __aexit__(self, *_: Any) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes all connections."""
        await asyncio.to_thread(self._client.close)

    async def read_output(self, job: str, stream: str = "stdout", *, offset: int = 0, wait: bool = False) -> tuple[bytes, int, bool]:
        """As Client.read_output."""
        return await asyncio.to_thread(self._client.read_output, job, stream, offset=offset, wait=wait)

    async def output(self, job: str, stream: str = "stdout") -> AsyncIterator[bytes]:
        """All output of a job, until it ends."""
        offset, ended = 0, False
        while not ended:
            data, offset, ended = await self.read_output(job, stream, offset=offset, wait=True)
            if data:
                yield data

    async def write_input(self, job: str, data: bytes, *, offset: int = 0, eof: bool = False) -> int:
        """As Client.write_input."""
        return await asyncio.to_thread(self._client.write_input, job, data, offset=offset, eof=eof)

    async def back_up(self) -> bytes:
        """As Client.back_up."""
        return await asyncio.to_thread(self._client.back_up)

    async def export_usage(self, *, since: Optional[str] = None, by: Optional[str] = None, user: Optional[str] = None, host: Optional[str] = None) -> str:
        """As Client.export_usage."""
        return await asyncio.to_thread(self._client.export_usage, since=since, by=by, user=user, host=host)

    async def export_sacct(self, *, since: Optional[str] = None, user: Optional[str] = None) -> str:
        """As Client.export_sacct."""
        return await asyncio.to_thread(self._client.export_sacct, since=since, user=user)

    async def wait(self, job: str, timeout: Optional[float] = None) -> Any:
        """As Client.wait."""
        return await asyncio.to_thread(self._client.wait, job, timeout)

    async def events(self, *, kinds: Iterable[str] = (), last_id: str = "") -> AsyncIterator[Event]:
        """As Client.events. Whoever stops early ends its connection by aclose(), or by leaving contextlib.aclosing()."""
        loop = asyncio.get_running_loop()
        queue: asyncio.Queue[Any] = asyncio.Queue()
        room = threading.Semaphore(1000)  # a slow reader has the controller wait, which then sends only the newest
        own = Client.__new__(Client)  # with connections of its own, which end with it
        own._transport, own._timeout, own._tries = self._client._transport, self._client._timeout, self._client._tries
        own._mine, own._lock, own._open = threading.local(), threading.Lock(), set()
        over = threading.Event()

        def put(what: Any) -> None:
            try:
                loop.call_soon_threadsafe(queue.put_nowait, what)
            except RuntimeError:
                over.set()  # the loop has ended

        def read() -> None:
            try:
                for event in own.events(kinds=list(kinds), last_id=last_id):
                    while not room.acquire(timeout=0.5):
                        if over.is_set():
                            return
                    if over.is_set():
                        return
                    put(event)
            except BaseException as e:  # the reader raises it
                put(e)

        thread = threading.Thread(target=read, daemon=True, name="pagurus-events")
        thread.start()
        try:
            while True:
                what = await queue.get()
                room.release()
                if isinstance(what, BaseException):
                    raise what
                yield what
        finally:
            over.set()
            own.close()

    async def _call(self, method: str, path: str, query: Mapping[str, str], body: Any, key: Optional[str]) -> Any:
        return await asyncio.to_thread(self._client._call, method, path, query, body, key)
