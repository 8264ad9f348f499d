"""What requests carry to tell who sends them: a token, a token of a file, or a name and a password.

Nothing that is told here shows a token, nor a part of one.
"""

import re
from collections.abc import Generator
from pathlib import Path

import httpx2
from lightkube.config.models import User

from epp.discovery.kubernetes.api_errors import CredentialsError

TOKEN_FILE_MAX_BYTES = 1 << 20
"""A file that is longer holds no token."""
UNFIT = "expected a token of printable ASCII characters without spaces, found something else"

_TOKEN = re.compile(r"[!-~]+")


def clean_token(text: str) -> str | None:
    """The token, without the white space that editors and YAML put around it; None when it cannot stand in a header."""
    token = text.strip()
    return token if _TOKEN.fullmatch(token) else None


def bearer_of(text: str, where: str) -> str:
    """The value of the header `Authorization` (RFC 6750).

    Raises:
        CredentialsError: It is no token.
    """
    token = clean_token(text)
    if token is None:
        raise CredentialsError(None, "", f"{where}: {UNFIT}")
    return f"Bearer {token}"


def user_auth(user: User) -> httpx2.Auth | None:
    """How requests of this user are made his; None when he has nothing but a certificate, or nothing at all.

    Raises:
        CredentialsError: His token is none.
    """
    if user.token_file is not None:
        return TokenFile(user.token_file)
    if user.token is not None:
        return _Token(bearer_of(user.token, "token"))
    if user.username and user.password:
        return httpx2.BasicAuth(user.username, user.password)
    return None


class _Token(httpx2.Auth):
    def __init__(self, bearer: str) -> None:
        self._bearer = bearer

    def auth_flow(self, request: httpx2.Request) -> Generator[httpx2.Request, httpx2.Response, None]:
        request.headers["Authorization"] = self._bearer
        yield request


class TokenFile(httpx2.Auth):
    """The token of a file, read again after a 401: service accounts get a new one about every hour."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        self._bearer: str | None = None

    def auth_flow(self, request: httpx2.Request) -> Generator[httpx2.Request, httpx2.Response, None]:
        if self._bearer is None:
            self._bearer = self._read()
        request.headers["Authorization"] = self._bearer
        response = yield request
        if response.status_code == 401:
            self._bearer = self._read()
            request.headers["Authorization"] = self._bearer
            yield request

    def _read(self) -> str:
        where = f"token file {self._path}"
        try:
            with self._path.open("rb") as file:
                found = file.read(TOKEN_FILE_MAX_BYTES + 1)
        except OSError as error:
            raise CredentialsError(None, "", f"{where}: expected a file, found: {error.strerror or error}") from None
        if len(found) > TOKEN_FILE_MAX_BYTES:
            raise CredentialsError(None, "", f"{where}: expected at most {TOKEN_FILE_MAX_BYTES} bytes, found more")
        return bearer_of(found.decode(errors="replace"), where)
