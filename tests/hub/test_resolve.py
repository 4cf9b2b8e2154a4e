"""From a hub id to a directory: what is fetched, what is not, and what is kept."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from huggingface_hub import hf_hub_download

from compatfix.checkpoint.directory import read_checkpoint
from compatfix.errors import UsageError
from compatfix.hub.place import ModelPlace

from ..checkpoint.made import INDEX, directory, of_header
from .conftest import SHARDS, A, B, header_bytes


def test_what_lies_here_is_a_path_and_nobody_is_asked(hub, user, tmp_path):
    directory(tmp_path / "org" / "shards", {"config.json": b"{}"})
    assert user("org/shards") == ModelPlace("org/shards", "org/shards")
    assert user("nowhere") == ModelPlace("nowhere", "nowhere")
    assert user(Path("org/single")) == ModelPlace("org/single", "org/single")
    for path in ("./org/single", "/org/single", "a/b/c", "~/models", "../single", "org/single/"):
        assert user(path) == ModelPlace(path, path)
    assert hub.log == []


def test_of_weights_only_headers_are_fetched(hub, user):
    user("org/shards")
    sent = {name: sum(request.sent for request in hub.asked(name)) for name in ("a.safetensors", "b.safetensors")}
    assert sent == {"a.safetensors": header_bytes(A), "b.safetensors": header_bytes(B)}
    assert all(request.range for request in hub.asked(".safetensors"))
    assert hub.asked(".png") == hub.asked(".md") == []


def test_the_directory_reads_like_the_repository_itself(hub, user, tmp_path):
    place = user("org/shards")
    found, true = read_checkpoint(Path(place.path)), read_checkpoint(directory(tmp_path / "true", shallow(SHARDS)))
    assert found.complete
    assert (found.tensors, found.bytes, found.index) == (true.tensors, true.bytes, INDEX)
    assert (Path(place.path) / "generation_config.json").read_bytes() == SHARDS["generation_config.json"]
    origin = place.origin
    assert (origin.repo, origin.revision, origin.weights) == ("org/shards", "main", "headers")
    assert origin.commit == hub.repositories["org/shards"].revisions["main"]
    assert (origin.weight_files, origin.bytes) == (("a.safetensors", "b.safetensors"), len(A) + len(B))


def shallow(files):
    return {name: data for name, data in files.items() if "/" not in name}


def test_large_files_are_holes(hub, user):
    # 40 GB by the list and by its header; the server has the header alone.
    size = 40 * 10**9
    data = of_header({"a.weight": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}})
    repository = hub.repository("org/large", {"config.json": SHARDS["config.json"], "model.safetensors": data})
    repository.sizes["model.safetensors"] = len(data) + size
    with pytest.raises(UsageError, match="is listed with 40000000"):
        user("org/large")
    repository.sizes["model.safetensors"] = None
    place = user("org/large")
    assert os.stat(Path(place.path) / "model.safetensors").st_blocks * 512 < 1 << 20


def test_a_single_file(hub, user):
    place = user("org/single")
    assert read_checkpoint(Path(place.path)).complete
    assert sum(request.sent for request in hub.asked("model.safetensors")) == header_bytes(A)


def test_a_server_that_knows_no_ranges_is_left_after_the_header(hub, user):
    hub.ranges = False
    assert read_checkpoint(Path(user("org/single").path)).complete


def test_pickles_and_code_are_named_and_never_fetched(hub, user):
    place = user("org/pickles")
    assert hub.asked(".bin") == hub.asked(".py") == []
    assert (place.origin.pickles, place.origin.code) == (("pytorch_model.bin",), ("modeling_own.py",))
    found = read_checkpoint(Path(place.path))
    assert (found.form, found.pickles, found.bytes) == ("pickle", ("pytorch_model.bin",), 700)
    assert not (Path(place.path) / "modeling_own.py").exists()


def test_the_second_run_asks_only_what_the_revision_is(hub, user):
    first = user("org/shards")
    hub.log.clear()
    assert user("org/shards") == first
    assert [request.path.partition("?")[0] for request in hub.log] == ["/api/models/org/shards/revision/main"]


def test_a_commit_that_is_known_needs_no_hub(hub, user):
    commit = hub.repositories["org/shards"].revisions["main"]
    first = user(f"org/shards@{commit}")
    hub.log.clear()
    assert user(f"org/shards@{commit}") == first
    assert hub.log == []


def test_another_revision_is_another_directory(hub, user):
    commit = hub.repositories["org/shards"].push({**SHARDS, "a.safetensors": A[:-2]}, "v/2")
    place = user("org/shards@v/2")
    assert place.origin.commit == commit
    assert place.path != user("org/shards").path
    assert "is truncated" in read_checkpoint(Path(place.path)).problems[0]


def test_main_moves_on(hub, user):
    first = user("org/single")
    commit = hub.repositories["org/single"].push({**SHARDS})
    assert user("org/single").origin.commit == commit != first.origin.commit


def test_offline_takes_what_main_was(hub, user):
    first = user("org/shards")
    hub.repositories["org/shards"].push({"config.json": b"{}"})
    hub.log.clear()
    again = user("org/shards", offline=True)
    assert hub.log == []
    assert (again.path, again.origin.commit) == (first.path, first.origin.commit)
    assert again.origin.offline


def test_a_link_that_lost_its_file_is_fetched_again(hub, user):
    place = user("org/single")
    (Path(place.path) / "config.json").resolve().unlink()
    (Path(place.path) / "config.json").readlink().unlink()
    hub.log.clear()
    assert user("org/single").path == place.path
    assert (Path(place.path) / "config.json").is_file()
    assert hub.asked("config.json")


def download(hub, user, without=()):
    for name in SHARDS:
        if name not in without:
            hf_hub_download("org/shards", name, revision="main", endpoint=hub.url, cache_dir=user.hub_cache)


def test_weights_in_the_hubs_own_cache_are_used(hub, user):
    download(hub, user)
    hub.log.clear()
    for given in ("org/shards", "org/shards@main"):
        place = user(given, weights=True)
        assert place.origin.weights == "cached"
        assert (Path(place.path) / "a.safetensors").read_bytes() == A
    assert hub.asked(".safetensors") == []
    assert user("org/shards", offline=True, weights=True).path == place.path


def test_weights_fetched_by_the_hubs_own_tools_serve_offline(hub, user):
    download(hub, user)
    place = user("org/shards", offline=True, weights=True)
    assert (place.origin.weights, place.origin.offline) == ("cached", True)
    assert (Path(place.path) / "b.safetensors").read_bytes() == B


def test_a_snapshot_without_all_shards_is_none(hub, user):
    download(hub, user, without=["b.safetensors"])
    with pytest.raises(UsageError, match="not in the hub's cache"):
        user("org/shards", weights=True)
    assert user("org/shards").origin.weights == "headers"


def test_the_token_goes_to_the_endpoint_alone(hub, user, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    user("org/shards")
    assert {(request.origin, request.token) for request in hub.log} == {("hub", "Bearer hf_secret"), ("store", None)}
    kept = [path for path in Path(os.environ["XDG_CACHE_HOME"]).rglob("*") if path.is_file()]
    assert not any(b"hf_secret" in path.read_bytes() for path in kept)


def test_without_a_token_none_is_sent(hub, user):
    user("org/shards")
    assert {request.token for request in hub.log} == {None}
