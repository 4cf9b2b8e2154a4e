"""From what a user wrote for a model to a directory: a local one as it is, a hub id by what is fetched for it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from compatfix.errors import UsageError
from compatfix.hub.names import HubId, hub_id
from compatfix.hub.place import ModelPlace, Origin, Places, is_there

if TYPE_CHECKING:
    from compatfix.hub.client import Hub, Listing, Settings
    from compatfix.hub.contents import Contents
    from compatfix.hub.kept import Shelf
    from compatfix.process import OnStep

T = TypeVar("T")
Model = str | Path | ModelPlace
# Side by side: a repository has tens of files and each costs a round trip.
_AT_ONCE = 8


def located(
    given: Model, *, weights: bool = False, settings: Settings | None = None, on_step: OnStep | None = None
) -> ModelPlace:
    """The place of a model. What is no hub id by its form, or lies here, is taken as a path and not looked at.

    With `weights`, a hub id needs all of its weights in the hub's cache; nothing is fetched for it otherwise.
    Raises: UsageError, in one line, for whatever keeps a hub id from being read.
    """
    if isinstance(given, ModelPlace):
        return given
    text = str(given)
    asked = None if isinstance(given, Path) or is_there(text) else hub_id(text)
    if asked is None:
        return ModelPlace(text, text)
    from compatfix.hub.client import Hub, Settings, quiet
    from compatfix.hub.kept import Shelf, cache_directory

    hub = Hub(asked, settings or Settings())
    shelf = Shelf(cache_directory(), hub.endpoint, asked)
    with quiet():
        try:
            return _Resolving(text, asked, hub, shelf, on_step).place(weights)
        except OSError as error:
            raise UsageError(f"cannot keep files of {asked.repo} in {shelf.root}: {error.strerror or error}") from error


def places(
    target: Model, draft: Model | None = None, *, weights: bool = False, on_step: OnStep | None = None
) -> Places:
    """The places of a pair; see `located`."""
    first = located(target, weights=weights, on_step=on_step)
    return Places(first, None if draft is None else located(draft, weights=weights, on_step=on_step))


@dataclass(frozen=True)
class _Resolving:
    """One hub id on its way to a directory."""

    given: str
    asked: HubId
    hub: Hub
    shelf: Shelf
    on_step: OnStep | None

    def place(self, weights: bool) -> ModelPlace:
        from compatfix.hub.contents import contents_of

        listing = self._listing()
        if listing is None:
            return self._cached_alone()
        contents = contents_of(listing, self.asked.repo)
        whole = self._cached_whole(listing, contents)
        if whole is not None:
            return self._told(listing, contents, whole, str(self._fetch_small(listing, contents)))
        if weights:
            raise UsageError(self._not_here(listing, contents))
        if not self.shelf.whole(listing.commit, contents.small, contents.weights):
            if self.hub.offline:
                from compatfix.hub.failures import not_cached

                raise UsageError(not_cached(self.asked, "is no longer whole in the cache"))
            self._fetch(listing, contents)
        directory = self.shelf.directory(listing.commit)
        return self._told(listing, contents, self._loaded(listing, contents, directory), str(directory), "headers")

    def _listing(self) -> Listing | None:
        """What the revision is: asked again every time, unless it is a commit that was looked at before.

        None where only the hub's own cache can tell, and the hub cannot be asked.
        """
        if self.asked.is_commit:
            known = self.shelf.listing(self.asked.revision)
            if known is not None:
                return known
        if self.hub.offline:
            commit = self._last_known()
            return None if commit is None else self.shelf.listing(commit)
        self._step(f"asking the hub for {self.asked.repo}")
        listing = self.hub.listing()
        self.shelf.remember(listing.commit)
        return listing

    def _last_known(self) -> str | None:
        """The commit of the revision when it was last asked for, by this tool or by the hub's own."""
        if self.asked.is_commit:
            return self.asked.revision
        own, theirs = self.shelf.remembered(), self.hub.cached(self.asked.revision, "config.json")
        if theirs is None:
            return None if own is None else own[0]
        if own is None:
            return theirs.parent.name
        ref = theirs.parents[2] / "refs" / self.asked.revision
        newer = ref.exists() and ref.stat().st_mtime_ns > own[1]
        return theirs.parent.name if newer else own[0]

    def _cached_alone(self) -> ModelPlace:
        """Offline, and fetched by the hub's own tools: the snapshot is taken where it is whole."""
        from compatfix.checkpoint.directory import read_checkpoint
        from compatfix.hub.failures import not_cached

        commit = self._last_known()
        config = None if commit is None else self.hub.cached(commit, "config.json")
        if commit is None or config is None:
            raise UsageError(not_cached(self.asked))
        found = read_checkpoint(config.parent)
        if not found.complete:
            raise UsageError(not_cached(self.asked, "is in the cache without all of its weights"))
        files = tuple(header.file for header in found.headers)
        code = tuple(sorted(file.name for file in config.parent.glob("*.py")))
        origin = Origin(
            self.asked.repo,
            self.asked.revision,
            commit,
            self.hub.endpoint,
            "cached",
            files,
            found.bytes,
            found.pickles,
            code,
            offline=True,
        )
        return ModelPlace(self.given, str(config.parent), origin)

    def _cached_whole(self, listing: Listing, contents: Contents) -> tuple[str, ...] | None:
        """The weight files that the library would load, where all of them are in the hub's cache."""
        from compatfix.checkpoint.directory import INDEX, weight_map
        from compatfix.hub.contents import loaded

        if contents.first is None:
            return None
        index = self.hub.cached(listing.commit, contents.first) if contents.first.endswith(INDEX) else None
        if contents.first.endswith(INDEX) and index is None:
            return None
        where = weight_map(index, []) if index is not None else {}
        names = loaded(contents, listing, where, self.asked.repo)
        if not names or set(where.values()) - set(names):
            return None
        for name in names:
            file = self.hub.cached(listing.commit, name)
            if file is None or listing.files[name] not in (None, file.stat().st_size):
                return None
        return names

    def _loaded(self, listing: Listing, contents: Contents, directory: Path) -> tuple[str, ...]:
        from compatfix.checkpoint.directory import INDEX, weight_map
        from compatfix.hub.contents import loaded

        indexed = contents.first is not None and contents.first.endswith(INDEX)
        where: Mapping[str, str] = weight_map(directory / str(contents.first), []) if indexed else {}
        return loaded(contents, listing, where, self.asked.repo)

    def _fetch(self, listing: Listing, contents: Contents) -> None:
        """Small files as links into the hub's cache, true headers, holes for all other weight files."""
        from compatfix.hub.headers import fetch_header, write_hole

        self.hub.may_fetch(listing.commit, contents.small[0])
        source = self._fetch_small(listing, contents)
        with self.shelf.aside(listing.commit) as aside:
            for name in contents.small:
                (aside / name).symlink_to(source / name)
            names = self._loaded(listing, contents, aside)
            headed = [name for name in names if name.endswith(".safetensors")]

            def header(name: str) -> None:
                size = listing.files[name]
                fetch_header(self.hub, self.asked.repo, listing.commit, name, size, aside / name)

            self._step(f"reading {len(headed)} headers of {self.asked.repo}")
            _side_by_side(header, headed)
            for name in {*contents.weights, *names} - set(headed):
                size = listing.files[name]
                write_hole(aside / name, self.hub.size(listing.commit, name) if size is None else size)
            self.shelf.put(aside, listing)

    def _fetch_small(self, listing: Listing, contents: Contents) -> Path:
        """The directory in the hub's cache."""
        self._step(f"fetching {len(contents.small)} small files of {self.asked.repo}")
        return _side_by_side(lambda name: self.hub.fetch(listing.commit, name), contents.small)[0].parent

    def _told(
        self, listing: Listing, contents: Contents, files: tuple[str, ...], path: str, weights: Any = "cached"
    ) -> ModelPlace:
        sizes = [(Path(path) / name).stat().st_size for name in files]
        origin = Origin(
            self.asked.repo,
            self.asked.revision,
            listing.commit,
            self.hub.endpoint,
            weights,
            files,
            sum(sizes),
            contents.pickles,
            contents.code,
            self.hub.offline,
        )
        return ModelPlace(self.given, path, origin)

    def _not_here(self, listing: Listing, contents: Contents) -> str:
        """Which command fetches the weights, and how much that is."""
        from compatfix.memory_plan import gigabytes

        if not contents.weights:
            return f"{self.asked.repo} has no weights on the hub, and real weights are asked for"
        total = gigabytes(sum(size or 0 for size in listing.files.values()))
        unsure = "at least " if None in listing.files.values() else ""
        command = f"`{self.asked.download}` fetches them ({unsure}{total} in all)"
        return f"real weights of {self.asked.repo} are asked for and not in the hub's cache: {command}"

    def _step(self, stage: str) -> None:
        if self.on_step is not None:
            from compatfix.process import Step

            self.on_step(Step(stage))


def _side_by_side(job: Callable[[str], T], names: Iterable[str]) -> list[T]:
    """Results in the order of the names; the first failure is raised, and nothing more is begun after it."""
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        futures = [pool.submit(job, name) for name in names]
        try:
            return [future.result() for future in futures]
        except BaseException:
            for future in futures:
                future.cancel()
            raise
