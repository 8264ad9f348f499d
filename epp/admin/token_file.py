"""The token that opens the calls of the admin port, from a file that may change (a Secret that is rotated)."""

import hmac
import os
import stat
from pathlib import Path
from typing import Protocol

from epp.errors import ConfigError

MAX_BYTES = 4096
_WHERE = "--admin-token-file"


class TokenLog(Protocol):
    """Where a file that cannot be used any more is reported."""

    def warning(self, event: str, **fields: object) -> object: ...


class TokenFile:
    """Reads the file at each question: tokens are asked for rarely, and a new one is in force at once.

    A file that can no longer be used leaves the last token in force, with one line in the log. The token itself is shown
    nowhere.
    """

    def __init__(self, file: str, log: TokenLog) -> None:
        """Read `file`.

        Raises:
            ConfigError: It is no regular file of 1 to 4,096 bytes with one token of printable ASCII and white space around.
        """
        self._file = file
        self._log = log
        self._token = _read(file)
        self._told: str | None = None

    def current(self) -> bytes:
        """The token in force."""
        try:
            self._token = _read(self._file)
            self._told = None
        except ConfigError as error:
            if str(error) != self._told:
                self._told = str(error)
                self._log.warning("the admin token stays as it was", problem=self._told)
        return self._token

    def matches(self, given: bytes) -> bool:
        """Whether `given` is the token; takes as long for a near miss as for any other."""
        return hmac.compare_digest(given, self.current())


def _read(file: str) -> bytes:
    try:
        # Not blocking: the other end of a pipe may never come, and this is the thread that everything else waits for.
        descriptor = os.open(Path(file), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise ConfigError(f"{_WHERE}: expected a readable file, found {file!r}: {reason}") from None
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ConfigError(f"{_WHERE}: expected a regular file, found {file!r}")
        content = os.read(descriptor, MAX_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{_WHERE}: expected a readable file, found {file!r}: {error.strerror}") from None
    finally:
        os.close(descriptor)
    if len(content) > MAX_BYTES:
        raise ConfigError(f"{_WHERE}: expected at most {MAX_BYTES} bytes, found more in {file!r}")
    token = content.strip()
    if not token or not all(0x21 <= byte <= 0x7E for byte in token):
        found = "none" if not token else "something else"
        raise ConfigError(f"{_WHERE}: expected one token of printable ASCII without spaces, found {found} in {file!r}")
    return token
