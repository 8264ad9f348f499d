"""Credentials that a program gives: the `exec` of a kubeconfig (client.authentication.k8s.io, "ExecCredential")."""

import asyncio
import json
import os
import signal
from collections.abc import AsyncGenerator
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, cast

import httpx2
import msgspec
from lightkube.config.models import UserExec

from epp.clock import Clock
from epp.discovery.kubernetes.api_errors import CredentialsError
from epp.discovery.kubernetes.credentials import bearer_of

PLUGIN_MAX_S = 20.0
"""A plugin that has not answered by then is killed; less than a request may take, so that the request can tell."""
OUTPUT_MAX_BYTES = 1 << 20
"""Tokens are a few KB long."""
KILLED_MAX_S = 1.0
"""A killed process is gone within milliseconds, or never."""


@dataclass(frozen=True, slots=True, eq=False)
class _Token:
    bearer: str
    expires_at_s: float | None
    """Seconds since 1970-01-01 UTC."""


class _CredentialStatus(msgspec.Struct, rename="camel"):
    token: str = ""
    expiration_timestamp: Annotated[datetime, msgspec.Meta(tz=True)] | None = None
    client_certificate_data: str = ""


class _ExecCredential(msgspec.Struct):
    status: _CredentialStatus


_EXEC_CREDENTIAL = msgspec.json.Decoder(_ExecCredential)


class ExecPlugin(httpx2.Auth):
    """Asks a program for a token, and keeps it until it expires or the API server refuses it (401).

    The program runs at most once at a time, for `max_s` at most, in a process group of its own that is killed when nobody
    waits for it any more. What it says on stderr, its arguments and its answer are never told: there may be secrets in them.
    """

    def __init__(
        self,
        plugin: UserExec,
        clock: Clock,
        *,
        max_s: float = PLUGIN_MAX_S,
        output_max_bytes: int = OUTPUT_MAX_BYTES,
    ) -> None:
        self._command = (plugin.command, *(plugin.args or ()))
        self._env = {each.name: each.value for each in plugin.env or ()}
        self._where = f"credential plugin {json.dumps(plugin.command, ensure_ascii=False)}"
        self._clock = clock
        self._max_s = max_s
        self._output_max_bytes = output_max_bytes
        self._lock = asyncio.Lock()
        self._token: _Token | None = None
        self._failures = 0
        self._failure = ""

    async def async_auth_flow(self, request: httpx2.Request) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
        """Send the request with the token, and once more with a new one after a 401.

        Raises:
            CredentialsError: The plugin gave no token.
        """
        token = await self._current(refused=None)
        request.headers["Authorization"] = token.bearer
        response = yield request
        if response.status_code == 401:
            request.headers["Authorization"] = (await self._current(refused=token)).bearer
            yield request

    async def _current(self, refused: _Token | None) -> _Token:
        failures = self._failures
        async with self._lock:
            if self._token is not None and self._token is not refused and not self._is_over(self._token):
                return self._token
            if self._failures > failures:  # while this one waited: it need not wait for the same again
                raise self._error(self._failure)
            try:
                self._token = self._read(await self._run())
            except CredentialsError as error:
                self._failures += 1
                self._failure = error.message
                raise
            return self._token

    def _is_over(self, token: _Token) -> bool:
        return token.expires_at_s is not None and self._clock.wall_s() >= token.expires_at_s

    async def _run(self) -> bytes:
        loop = asyncio.get_running_loop()
        output = _Output(self._output_max_bytes)
        try:
            transport, _ = await loop.subprocess_exec(
                lambda: output,
                *self._command,
                env={**os.environ, **self._env},
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
                start_new_session=True,
            )
        except OSError as error:
            raise self._fault("a program that can be run", f": {os.strerror(error.errno) if error.errno else 'none'}") from None
        except ValueError:
            raise self._fault("a command, arguments and env that a program can get", " something else") from None
        try:
            async with asyncio.timeout(self._max_s):
                await output.over.wait()
        except TimeoutError:
            raise self._fault(f"an answer within {self._max_s:g} s", " none") from None
        finally:
            await _end(transport, output)
        if output.too_long:
            raise self._fault(f"at most {self._output_max_bytes} bytes", " more")
        code = cast("int", transport.get_returncode())
        if code != 0:
            raise self._fault("exit code 0", f" exit code {code}" if code > 0 else f" an end by signal {-code}")
        return bytes(output.text)

    def _read(self, answer: bytes) -> _Token:
        try:
            status = _EXEC_CREDENTIAL.decode(answer).status
        except (ValueError, RecursionError):
            raise self._fault("an ExecCredential with status.token", " something else") from None
        if not status.token:
            found = "a client certificate, which is not supported" if status.client_certificate_data else "none"
            raise self._fault("an ExecCredential with status.token", f" {found}")
        expires = status.expiration_timestamp
        return _Token(bearer_of(status.token, self._where), None if expires is None else expires.timestamp())

    def _fault(self, expected: str, found: str) -> CredentialsError:
        return self._error(f"{self._where}: expected {expected}, found{found}")

    @staticmethod
    def _error(message: str) -> CredentialsError:
        return CredentialsError(None, "", message)


class _Output(asyncio.SubprocessProtocol):
    """What a program writes, until it has ended or has written too much.

    Attributes:
        too_long: It wrote too much.
        over: There is nothing more to wait for.
        exited: The process is no more; something that it started may still hold its output open.
        lost: The process is no more, and its output is closed.
    """

    def __init__(self, max_bytes: int) -> None:
        self.text = bytearray()
        self.too_long = False
        self.over = asyncio.Event()
        self.exited = asyncio.Event()
        self.lost = False
        self._max_bytes = max_bytes

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        if self.too_long:
            return
        self.text += data
        if len(self.text) > self._max_bytes:
            self.too_long = True
            self.text.clear()
            self.over.set()

    def process_exited(self) -> None:
        self.exited.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True
        self.over.set()


async def _end(transport: asyncio.SubprocessTransport, output: _Output) -> None:
    """Kill what has not ended by itself, with all that it started, and wait for it."""
    try:
        if not output.lost:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(transport.get_pid(), signal.SIGKILL)
        with suppress(TimeoutError):  # a program that has become somebody else cannot be killed
            async with asyncio.timeout(KILLED_MAX_S):
                await output.exited.wait()
    finally:
        transport.close()
