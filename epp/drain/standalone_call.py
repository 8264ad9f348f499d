"""One HTTP call for images that have Python and not `epp`: the printed script runs this text with `python3 -c`.

Arguments: method, URL, seconds in all, most bytes; on standard input the token, or nothing. It prints the body and then, on a
line of its own, the status, or `refused`, `late` or `failed`.
"""

import http.client
import os
import signal
import sys
import urllib.parse


def end(body: bytes, status: str) -> None:
    """Print, and end the process at once."""
    sys.stdout.buffer.write(body + b"\n" + status.encode())
    sys.stdout.buffer.flush()
    os._exit(0)


def call(method: str, url: str, limit_s: float, most_bytes: int, token: str) -> None:
    """Make the call."""
    parts = urllib.parse.urlsplit(url)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    headers = {"Accept": "text/plain, */*;q=0.1", "Connection": "close"}
    if token:
        headers["Authorization"] = "Bearer " + token
    try:
        connection = kind(parts.hostname or "", parts.port, timeout=limit_s)
        connection.request(method, (parts.path or "/") + ("?" + parts.query if parts.query else ""), headers=headers)
        answer = connection.getresponse()
        body = answer.read(most_bytes)
    except ConnectionRefusedError:
        end(b"", "refused")
    except TimeoutError:
        end(b"", "late")
    except Exception:  # noqa: BLE001 - whatever it is, there is no page
        end(b"", "failed")
    else:
        end(body, "failed" if answer.length else str(answer.status))  # length: what of the body has not come


if __name__ == "__main__":
    signal.signal(signal.SIGALRM, lambda *_: end(b"", "late"))
    signal.setitimer(signal.ITIMER_REAL, float(sys.argv[3]))
    call(sys.argv[1], sys.argv[2], float(sys.argv[3]), int(sys.argv[4]), sys.stdin.read().strip())
