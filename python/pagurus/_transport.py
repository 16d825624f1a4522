"""How the controller is found and reached: its socket, or HTTP with a token, or TLS with a certificate or a token."""

from __future__ import annotations

import base64
import hashlib
import http.client
import json
import os
import re
import socket
import ssl
from pathlib import Path
from typing import Any, Optional
from urllib.parse import urlsplit

SERVER_NAME = "controller.pagurus"  # that of every controller's certificate
SOCKET = "/run/pagurus/controller.sock"
BASE = "/api/v1"


class Problem(Exception):
    """The controller refused or failed: detail is the sentence that the command line prints."""

    def __init__(self, status: int, title: str, detail: str) -> None:
        super().__init__(detail)
        self.status, self.title, self.detail = status, title, detail


class Unreachable(Exception):
    """No controller answers. A later try may succeed."""


class _Unix(http.client.HTTPConnection):
    def __init__(self, path: str, timeout: Optional[float]) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


class _TLS(http.client.HTTPSConnection):
    """Connects to an address, where whoever answers has to be a controller of the cluster."""

    def __init__(self, host: str, port: int, context: ssl.SSLContext, timeout: Optional[float]) -> None:
        super().__init__(host, port, context=context, timeout=timeout)
        self._tls = context

    def connect(self) -> None:
        plain = socket.create_connection((self.host, self.port), self.timeout)
        try:
            self.sock = self._tls.wrap_socket(plain, server_hostname=SERVER_NAME)
        except BaseException:
            plain.close()
            raise


def _config() -> Path:
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "pagurus"


class Transport:
    """Makes connections to one controller."""

    def __init__(self, address: Optional[str], token: Optional[str], credentials: Optional[str], authority: Optional[str]) -> None:
        credentials = credentials or os.environ.get("PAGURUS_CREDENTIALS") or str(_config())
        folder = Path(credentials)
        token = token or os.environ.get("PAGURUS_TOKEN")
        address = address or os.environ.get("PAGURUS_CONTROLLER")
        if not address:
            try:
                address = json.loads((folder / "login.json").read_text()).get("controller")
            except (OSError, ValueError):
                address = None
        self.address = address or "unix:" + SOCKET
        self.token = token.strip() if token else None
        self._path: Optional[str] = None
        self._tls: Optional[ssl.SSLContext] = None
        if self.address.startswith("unix:"):
            self._path = self.address[len("unix:"):]
            return
        url = urlsplit(self.address if "//" in self.address else "https://" + self.address)
        if url.scheme not in ("http", "https") or not url.hostname or not url.port or url.path not in ("", "/"):
            raise ValueError(f"{self.address!r} is not a controller: write unix:PATH, HOST:PORT, http://127.0.0.1:7480 or https://HOST:PORT")
        self._host, self._port = url.hostname, url.port
        if url.scheme == "http":
            if self._host != "localhost" and not re.fullmatch(r"127(\.\d+){3}|::1", self._host):
                raise ValueError(f"{self.address} would send the token in the clear: write https://")
            return
        self._tls = self._trusting(folder, authority)

    def _trusting(self, folder: Path, authority: Optional[str]) -> ssl.SSLContext:
        """A context that knows the cluster: by the certificate of its authority, or by its fingerprint in the token."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        if authority:
            context.load_verify_locations(cafile=authority)
        elif (folder / "cluster.crt").exists() and not (self.token and not (folder / "member.crt").exists()):
            context.load_verify_locations(cafile=str(folder / "cluster.crt"))
        elif self.token:
            context.load_verify_locations(cadata=self._shown())
        else:
            raise ValueError(f"the controller at {self.address} does not know you: give a token, or `pagurus login` first")
        if not self.token:
            context.load_cert_chain(str(folder / "member.crt"), str(folder / "member.key"))
        return context

    def _shown(self) -> str:
        """The certificate that whoever answers shows as its authority's, if its fingerprint is in the token. Nothing secret is
        sent before."""
        assert self.token
        fingerprint = self.token.rpartition(".")[2]
        unverified = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        unverified.minimum_version = ssl.TLSVersion.TLSv1_3
        unverified.check_hostname, unverified.verify_mode = False, ssl.CERT_NONE
        connection = _TLS(self._host, self._port, unverified, 15)
        try:
            connection.request("GET", BASE + "/authority", headers={"Host": SERVER_NAME})
            text = connection.getresponse().read(1 << 16).decode("ascii", "replace")
        except (OSError, http.client.HTTPException) as e:
            raise Unreachable(f"no controller answers at {self.address}: {e}") from e
        finally:
            connection.close()
        found = re.findall(r"-----BEGIN CERTIFICATE-----\s+([A-Za-z0-9+/=\s]+?)-----END CERTIFICATE-----", text)
        if len(found) != 1 or hashlib.sha256(base64.b64decode(found[0])).hexdigest() != fingerprint.lower():
            raise Unreachable(f"what answers at {self.address} is not the controller that the token is of")
        return text

    def connect(self, timeout: Optional[float]) -> http.client.HTTPConnection:
        """A new connection, which is made at its first use."""
        if self._path is not None:
            return _Unix(self._path, timeout)
        if self._tls is not None:
            return _TLS(self._host, self._port, self._tls, timeout)
        return http.client.HTTPConnection(self._host, self._port, timeout=timeout)

    def headers(self) -> dict[str, str]:
        """What each request has."""
        out = {"Accept": "application/json"}
        if self._tls is not None:
            out["Host"] = SERVER_NAME
        if self.token:
            out["Authorization"] = "Bearer " + self.token
        return out


def problem(response: http.client.HTTPResponse, body: bytes) -> Problem:
    """The problem that an answer is."""
    try:
        said: Any = json.loads(body)
        return Problem(int(said["status"]), str(said["title"]), str(said["detail"]))
    except (ValueError, KeyError, TypeError):
        return Problem(response.status, response.reason, f"what answers is not a Pagurus controller: {response.status} {response.reason}")
