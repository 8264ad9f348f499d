"""Tokens, and what is told of those that are none."""

from pathlib import Path

import httpx2
import pytest
from lightkube.config.models import User

from epp.discovery.kubernetes.api_errors import CredentialsError
from epp.discovery.kubernetes.credentials import TOKEN_FILE_MAX_BYTES, TokenFile, clean_token, user_auth


def authorization(user: User) -> str | None:
    """The header of a request of this user."""
    auth, request = user_auth(user), httpx2.Request("GET", "http://h")
    if auth is not None:
        next(auth.auth_flow(request))
    return request.headers.get("authorization")


@pytest.mark.parametrize(("text", "token"), [("a.b-c_d~+/=", "a.b-c_d~+/="), (" a\r\n", "a"), ("\n", None), ("a\nb", None)])
def test_a_token_is_one_word_of_printable_ascii(text: str, token: str | None) -> None:
    assert clean_token(text) == token


def test_a_file_beats_a_token_and_a_token_beats_a_password(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("of-file\n")
    user = User(token_file=str(tmp_path / "token"), token="given", username="me", password="pass")
    assert authorization(user) == "Bearer of-file"
    user.token_file = None
    assert authorization(user) == "Bearer given"
    user.token = None
    assert authorization(user) == "Basic bWU6cGFzcw=="
    assert authorization(User()) is None


@pytest.mark.parametrize(
    "content", [b"secret\nsecret", b"secret\0", b"", b" \n", b"\xff\xfesecret", b"secret" * TOKEN_FILE_MAX_BYTES, None]
)
def test_a_file_without_a_token_is_told_without_what_is_in_it(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "token"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(CredentialsError) as caught:
        next(TokenFile(str(path)).auth_flow(httpx2.Request("GET", "http://h")))
    assert str(caught.value).startswith(f"token file {path}: expected ")
    assert "secret" not in str(caught.value)


def test_a_token_that_is_none_is_told_without_it() -> None:
    with pytest.raises(CredentialsError, match="token: expected a token") as caught:
        user_auth(User(token="secret\0"))
    assert "secret" not in str(caught.value)
