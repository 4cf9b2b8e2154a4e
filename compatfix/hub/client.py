"""The only dealings with huggingface_hub: what a repository holds, small files of it, and ranges of large ones.

Cache, token, endpoint and offline mode are the library's own. Whatever it raises becomes one line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from compatfix import __version__
from compatfix.errors import UsageError
from compatfix.hub.failures import in_one_line
from compatfix.hub.names import COMMIT, HubId

PIECE = 1 << 16


@dataclass(frozen=True)
class Settings:
    """Where the hub is and where its files are kept; `None` for what the library's own variables say."""

    endpoint: str | None = None
    cache: Path | None = None
    offline: bool | None = None


@dataclass(frozen=True)
class Listing:
    """A commit and its files; sizes in bytes, None where the hub did not tell."""

    commit: str
    files: Mapping[str, int | None]


class Hub:
    """One hub, as the environment or `settings` name it. UsageError where huggingface_hub is not installed."""

    def __init__(self, asked: HubId, settings: Settings) -> None:
        try:
            from huggingface_hub import constants
        except ImportError:
            raise UsageError(
                f"no such directory: {asked.repo}; to read it from the hub, pip install huggingface_hub"
            ) from None
        self._asked = asked
        self._url_of_hub = (settings.endpoint or str(constants.ENDPOINT)).rstrip("/")
        # For people and reports: a password in it is nobody's business.
        self.endpoint = re.sub(r"(?<=://)[^/@]*@", "", self._url_of_hub)
        self.cache = settings.cache or Path(constants.HF_HUB_CACHE)
        self.offline = bool(constants.HF_HUB_OFFLINE) if settings.offline is None else settings.offline
        self._timeout = float(constants.HF_HUB_DOWNLOAD_TIMEOUT)

    def listing(self) -> Listing:
        """Asks which commit the revision is now, and for the names and sizes of its files."""
        from huggingface_hub import HfApi

        with self._answered():
            api = HfApi(endpoint=self._url_of_hub, library_name="compatfix", library_version=__version__)
            found = api.model_info(
                self._asked.repo, revision=self._asked.revision, files_metadata=True, timeout=self._timeout
            )
            commit, siblings = str(found.sha), list(found.siblings or ())
            files = {str(sibling.rfilename): _size(sibling) for sibling in siblings}
        if COMMIT.fullmatch(commit) is None:
            raise UsageError(f"the hub at {self.endpoint} names no commit for {self._asked.repo}: {commit[:60]!r}")
        return Listing(commit, files)

    def may_fetch(self, commit: str, name: str) -> None:
        """Asks for one file's head, so that a closed gate or a limit is told at once: a fetch would try for minutes."""
        self.size(commit, name)

    def size(self, commit: str, name: str) -> int:
        from huggingface_hub import get_hf_file_metadata

        with self._answered(name):
            found = get_hf_file_metadata(self._url(commit, name), timeout=self._timeout, endpoint=self._url_of_hub)
            return int(found.size or 0)

    def fetch(self, commit: str, name: str) -> Path:
        """A whole file, through the hub's cache."""
        from huggingface_hub import hf_hub_download

        with self._answered(name):
            return Path(
                hf_hub_download(
                    self._asked.repo,
                    name,
                    revision=commit,
                    cache_dir=self.cache,
                    endpoint=self._url_of_hub,
                    library_name="compatfix",
                    library_version=__version__,
                    local_files_only=self.offline,
                )
            )

    def cached(self, commit: str, name: str) -> Path | None:
        """The file in the hub's cache, or None; asks nobody. `commit` may be a revision."""
        from huggingface_hub import try_to_load_from_cache

        found = try_to_load_from_cache(self._asked.repo, name, cache_dir=self.cache, revision=commit)
        return Path(found) if isinstance(found, str) else None

    def read(self, commit: str, name: str, begin: int, length: int) -> tuple[bytes, int | None]:
        """These bytes of a file, and the size of all of it where that is told; reads no further whatever comes.

        Fewer bytes come back where the file ends before.
        """
        with self._answered(name), self._opened(commit, name, begin, length) as (response, pieces):
            total = _total(response, begin)
            # A server that knows no ranges sends the file from its beginning.
            skipped = begin if response.status_code == 200 else 0
            data = bytearray()
            for piece in pieces:
                data += piece
                if len(data) >= skipped + length:
                    break
            return bytes(data[skipped : skipped + length]), total

    @contextmanager
    def _opened(self, commit: str, name: str, begin: int, length: int) -> Iterator[tuple[Any, Iterator[bytes]]]:
        from huggingface_hub.utils import build_hf_headers, get_session, hf_raise_for_status

        headers = {
            **build_hf_headers(library_name="compatfix", library_version=__version__),
            "Range": f"bytes={begin}-{begin + length - 1}",
            "Accept-Encoding": "identity",
        }
        session, url = get_session(), self._url(commit, name)
        if callable(getattr(session, "stream", None)):
            with session.stream("GET", url, headers=headers, timeout=self._timeout) as response:
                hf_raise_for_status(response)
                yield response, response.iter_bytes(PIECE)
        else:  # before huggingface_hub 1.0 the session is one of requests
            with session.get(url, headers=headers, timeout=self._timeout, stream=True) as response:
                hf_raise_for_status(response)
                yield response, response.iter_content(PIECE)

    def _url(self, commit: str, name: str) -> str:
        from huggingface_hub import hf_hub_url

        return str(hf_hub_url(self._asked.repo, name, revision=commit, endpoint=self._url_of_hub))

    @contextmanager
    def _answered(self, name: str | None = None) -> Iterator[None]:
        """Whatever the library raises becomes one line."""
        try:
            yield
        except UsageError:
            raise
        except Exception as error:
            raise UsageError(in_one_line(error, self._asked, self.endpoint, name, _token() is not None)) from error


@contextmanager
def quiet() -> Iterator[None]:
    """The library's warnings and bars would stand between the lines of an answer."""
    from huggingface_hub.utils import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars, logging

    verbosity, bars = logging.get_verbosity(), not are_progress_bars_disabled()
    logging.set_verbosity_error()
    if bars:
        disable_progress_bars()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            enable_progress_bars()


def _token() -> str | None:
    from huggingface_hub import get_token

    found = get_token()
    return None if found is None else str(found)


def _size(sibling: Any) -> int | None:
    size = getattr(sibling, "size", None)
    lfs = getattr(sibling, "lfs", None)
    for told in (getattr(lfs, "size", None), size):
        if isinstance(told, int) and told >= 0:
            return told
    return None


def _total(response: Any, begin: int) -> int | None:
    """The size of the whole file, from the answer's headers."""
    told = response.headers.get("Content-Range" if response.status_code == 206 else "Content-Length") or ""
    number = told.rpartition("/")[2]
    return int(number) if number.isdigit() else None
