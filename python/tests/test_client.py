"""Runs the client against a real controller: PAGURUS_BIN has the programs, and root runs it, as whom the controller takes its socket's caller
for an administrator."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from datetime import datetime, timedelta, timezone
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "python"))

from pagurus import AsyncClient, Client, Mirror, Problem, Unreachable  # noqa: E402

BIN = Path(os.environ.get("PAGURUS_BIN", ROOT / "bin"))


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


class Controller:
    """A controller without hosts, in a folder of its own."""

    def __init__(self) -> None:
        self.dir = Path(tempfile.mkdtemp(prefix="pagurus-python"))
        self.tls, self.plain = free_port(), free_port()
        self.socket = f"unix:{self.dir}/controller.sock"
        self.process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        with open(self.dir / "log", "ab") as log:
            self.process = subprocess.Popen(
                [str(BIN / "pagurus-controller"), "--config=", "--run", str(self.dir), "--state", str(self.dir / "state"),
                 "--images", str(self.dir / "images"), "--listen", f"127.0.0.1:{self.tls}", "--http", f"127.0.0.1:{self.plain}"],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        end = time.monotonic() + 120
        with Client(self.socket, tries=1) as client:
            while True:
                try:
                    client.list_hosts()
                    return
                except (Problem, Unreachable):
                    if time.monotonic() > end or self.process.poll() is not None:
                        raise AssertionError((self.dir / "log").read_text())
                    time.sleep(0.1)

    def stop(self) -> None:
        assert self.process
        self.process.terminate()
        self.process.wait(60)

    def remove(self) -> None:
        self.stop()
        shutil.rmtree(self.dir)


def in_an_hour() -> str:
    return (datetime.now(timezone.utc) + timedelta(hours=1)).isoformat().replace("+00:00", "Z")


class Tests(unittest.TestCase):
    controller: Controller

    @classmethod
    def setUpClass(cls) -> None:
        cls.controller = Controller()
        with Client(cls.controller.socket) as root:
            root.set_user("ada", {"id": "ada", "role": "user", "uid": 1000, "gid": 100, "since": "0001-01-01T00:00:00Z"})

    @classmethod
    def tearDownClass(cls) -> None:
        cls.controller.remove()

    def token(self, **fields: object) -> str:
        with Client(self.controller.socket) as root:
            made = root.create_token({"role": "user", "user": "ada", "access": True, "uses": 0, "id": "", "hash": "", "expires": in_an_hour(),
                                      "since": "0001-01-01T00:00:00Z", **fields})  # type: ignore[typeddict-item]
        return made["token"]

    def test_socket(self) -> None:
        with Client(self.controller.socket) as root:
            self.assertTrue(root.who_am_i()["admin"])
            self.assertEqual(root.list_hosts(), [])
            self.assertIn("ada", [u["id"] for u in root.list_users()])
            with self.assertRaises(Problem) as refused:
                root.drain_host("host1")
            self.assertEqual(refused.exception.status, 422)
            said = subprocess.run([BIN / "pagurus", "--controller", self.controller.socket, "drain", "host1"], capture_output=True, text=True)
            self.assertEqual(said.stderr, "pagurus: " + refused.exception.detail + "\n")
            with self.assertRaises(Problem) as missing:
                root.show_job("j/../1 <b>")
            self.assertEqual(missing.exception.status, 404)
            self.assertTrue(root.export_usage(by="job").startswith("user,uid,job,host,"))
            self.assertEqual(root.export_sacct(user="ada"), "")
            with self.assertRaises(Problem) as unknown:
                root.show_usage(user="nobody here")
            self.assertEqual(unknown.exception.status, 422)

    def test_tokens(self) -> None:
        text = self.token()
        for address in (f"http://127.0.0.1:{self.controller.plain}", f"https://127.0.0.1:{self.controller.tls}"):
            with Client(address, token=text, credentials=str(self.controller.dir / "none")) as ada:
                me = ada.who_am_i()
                self.assertTrue(me.pop("pages"))
                self.assertEqual(me, {"uid": 1000, "gid": 100, "admin": False, "user": "ada"})
                with self.assertRaises(Problem) as refused:
                    ada.undrain_host("host1")
                self.assertEqual(refused.exception.status, 422)
                with self.assertRaises(Problem) as refused:
                    ada.list_audit()
                self.assertEqual(refused.exception.status, 403)
        with Client(self.controller.socket) as root:
            root.remove_token(text.partition(".")[0])
        with Client(f"http://127.0.0.1:{self.controller.plain}", token=text) as nobody:
            with self.assertRaises(Problem) as refused:
                nobody.list_jobs()
            self.assertEqual(refused.exception.status, 401)

    def test_another_cluster(self) -> None:
        """A token is sent to no controller but its cluster's."""
        text = self.token()
        other = text.rpartition(".")[0] + "." + "0" * 64
        with self.assertRaises(Unreachable):
            Client(f"127.0.0.1:{self.controller.tls}", token=other, credentials=str(self.controller.dir / "none"))
        for address in ("http://192.0.2.1:7480", "ftp://127.0.0.1:1", "127.0.0.1"):
            with self.assertRaises(ValueError):
                Client(address, token=text)

    def test_certificate(self) -> None:
        folder = self.controller.dir / "login"
        text = self.token(access=False, uses=1)
        subprocess.run([BIN / "pagurus", "login", f"127.0.0.1:{self.controller.tls}", "--token", text, "--credentials", folder], check=True, capture_output=True)
        with Client(credentials=str(folder)) as ada:
            self.assertEqual(ada.who_am_i()["user"], "ada")
            own = ada.create_token({"role": "user", "user": "ada", "access": True, "uses": 0, "id": "", "hash": "", "expires": in_an_hour(), "since": "0001-01-01T00:00:00Z"})
            self.assertEqual(own["token"].count("."), 2)

    def test_events(self) -> None:
        with Client(self.controller.socket) as root:
            mirror, seen = Mirror(), []
            for event in root.events(kinds=["policy"]):
                mirror.take(event)
                if event.name != "policy" or not mirror.ready:
                    if mirror.ready:
                        threading.Thread(target=root.set_policy, args=({"vacate": "evacuate"},)).start()
                    continue
                seen.append(event)
                break
            self.assertEqual(mirror["policy"][""]["name"], "evacuate")
            # Whoever comes back gets what it missed, and no reset.
            root.set_policy({"vacate": "stay"})
            for event in root.events(kinds=["policy"], last_id=seen[0].id):
                self.assertNotEqual(event.name, "reset")
                if event.name == "policy":
                    self.assertEqual(event.data["name"], "stay")
                    break

    def test_restart(self) -> None:
        """Who watches goes on when the controller begins again."""
        with Client(self.controller.socket, tries=100) as root:
            resets = 0
            for event in root.events(kinds=["host"]):
                resets += event.name == "reset"
                if event.name == "ready":
                    if resets == 2:
                        break
                    self.controller.stop()
                    self.controller.start()
            self.assertEqual(root.list_jobs(), [])

    def test_async(self) -> None:
        async def all_() -> None:
            async with AsyncClient(self.controller.socket) as root:
                who, jobs, policies = await asyncio.gather(root.who_am_i(), root.list_jobs(), root.list_policies())
                self.assertTrue(who["admin"])
                self.assertEqual(jobs, [])
                self.assertTrue(any(p["in_force"] for p in policies))
                async with contextlib.aclosing(root.events(kinds=["host"])) as events:
                    async for event in events:
                        if event.name == "ready":
                            break
                with self.assertRaises(Problem):
                    await root.show_host("host1")

        asyncio.run(asyncio.wait_for(all_(), 60))


if __name__ == "__main__":
    unittest.main()
