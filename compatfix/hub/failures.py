"""What can go wrong between here and the hub, each in one line: what, where, and what to do."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from compatfix.hub.names import HubId

# Of the library and of what it speaks HTTP with.
_NETWORK = ("httpx", "httpx2", "httpcore", "requests", "urllib3", "socket", "ssl")


def in_one_line(error: BaseException, asked: HubId, endpoint: str, name: str | None, with_token: bool) -> str:
    """The line for whatever huggingface_hub raised when it was asked for a repository, or for the file `name` of it."""
    chain = list(_chain(error))
    answered = next((e for e in chain if getattr(getattr(e, "response", None), "status_code", 0) >= 400), None)
    if answered is not None:
        return _refused(answered, asked, endpoint, name, with_token)
    if any(type(e).__name__ == "OfflineModeIsEnabled" for e in chain):
        return not_cached(asked)
    cut = next((e for e in chain if type(e).__name__ in ("RemoteProtocolError", "ChunkedEncodingError")), None)
    if cut is not None:
        of = f"{name} of {asked.repo}" if name else asked.repo
        return f"the answer of the hub at {endpoint} broke off ({of}: {_reason(cut)}); try again"
    if any(_is_network(e) for e in chain):
        return (
            f"no such directory, and the hub at {endpoint} cannot be reached for {asked.repo} ({_reason(chain[-1])}); "
            "HF_ENDPOINT names another hub, HF_HUB_OFFLINE=1 takes what is cached"
        )
    disk = next((e for e in chain if isinstance(e, OSError) and e.errno is not None and e.strerror), None)
    if disk is not None:
        return f"cannot keep files of {asked.repo} in the hub's cache: {disk.strerror} ({disk.filename})"
    of = f" for {name}" if name else ""
    return f"the hub at {endpoint} gave no answer of a hub{of} ({asked.repo}: {_reason(error)}); is HF_ENDPOINT right?"


def not_cached(asked: HubId, what: str = "is not in the cache") -> str:
    return (
        f"no such directory, and {asked.repo} at {asked.revision} {what} while HF_HUB_OFFLINE is set; run once without "
        f"it, or fetch all of it with `{asked.download}`"
    )


def _refused(error: Any, asked: HubId, endpoint: str, name: str | None, with_token: bool) -> str:
    response = error.response
    who = "the token in use" if with_token else "a request without a token"
    status, code = response.status_code, response.headers.get("X-Error-Code") or ""
    if code == "GatedRepo":
        return (
            f"{asked.repo} is gated and {who} has no access; ask for it at {endpoint}/{asked.repo}, then "
            "set HF_TOKEN to a token of that account"
        )
    if status == 429:
        wait = response.headers.get("Retry-After")
        when = (
            f"try again in {wait} s"
            if wait and wait.isdigit()
            else f"try again after {_first_line(wait)}"
            if wait
            else "wait"
        )
        return (
            f"the hub at {endpoint} limits requests (429) for {asked.repo}; {when}, or set HF_TOKEN for a higher limit"
        )
    if code == "RevisionNotFound" or (status == 404 and code == "" and name is None and asked.revision != "main"):
        return f"no such directory, and {asked.repo} has no revision {asked.revision} at {endpoint}"
    if code == "EntryNotFound" or (status == 404 and name is not None):
        return f"{asked.repo} at {asked.revision} has no {name}, although the hub at {endpoint} lists it"
    if code == "RepoNotFound" or status in (401, 404):
        return (
            f"no such directory, and the hub at {endpoint} has no {asked.repo}, or it is private and "
            f"{who} has no access (HF_TOKEN)"
        )
    said = response.headers.get("X-Error-Message") or getattr(response, "reason_phrase", "") or "no reason given"
    of = f"{name} of {asked.repo}" if name else asked.repo
    return f"the hub at {endpoint} refused {of}: {status} {_first_line(str(said))}"


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The error and what it came from, the first cause last."""
    seen: set[int] = set()
    now: BaseException | None = error
    while now is not None and id(now) not in seen:
        seen.add(id(now))
        yield now
        now = now.__cause__ or now.__context__


def _is_network(error: BaseException) -> bool:
    if type(error).__module__.partition(".")[0] in _NETWORK:
        return True
    return isinstance(error, (ConnectionError, TimeoutError))


def _reason(error: BaseException) -> str:
    strerror = getattr(error, "strerror", None)
    return _first_line(str(strerror or error) or type(error).__name__)


def _first_line(text: str) -> str:
    line = text.strip().splitlines()[0] if text.strip() else ""
    return line if len(line) <= 160 else f"{line[:157]}..."
