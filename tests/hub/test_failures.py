"""Everything that keeps a hub id from being read is one line that says what, where and what to do."""

from __future__ import annotations

import json
import socket
import struct
import sys
from pathlib import Path

import pytest
from huggingface_hub import hf_hub_download

from compatfix.checkpoint.header import LONGEST_HEADER
from compatfix.errors import UsageError
from compatfix.hub import kept
from compatfix.hub.client import Settings
from compatfix.hub.resolve import located

from ..checkpoint.made import INDEX, index
from .conftest import SHARDS, SINGLE, A
from .server import Answer

API = "/api/models/org/"


def line(user, given, **options):
    with pytest.raises(UsageError) as caught:
        user(given, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("given", "why"),
    {
        "org/": None,
        "org/na me": "'na me' is not made of letters, digits, '_', and '-' or '.' between them",
        "org/-name": "'-name' is not made of letters, digits, '_', and '-' or '.' between them",
        "org/a--b": "'a--b' has '--' or '..'",
        "org/a..b": "'a..b' has '--' or '..'",
        "org/name.git": "a name does not end in .git",
        "org/" + "n" * 93: "it is longer than 96 characters",
        "org/@main": "one of its parts is empty",
        "org/name@": "the revision after @ is empty",
        "org/name@../../x": "'../../x' is not a revision",
        "org/name@a b": "'a b' is not a revision",
        "name@main": "the organisation is missing",
    }.items(),
)
def test_not_an_id(hub, user, given, why):
    if why is None:
        assert user(given).path == given
    else:
        told = f"no such directory, and {given} is no hub id (ORGANISATION/NAME[@REVISION]): {why}"
        assert line(user, given) == told
    assert hub.log == []


def test_no_such_repository(hub, user):
    assert line(user, "org/nothing") == (
        f"no such directory, and the hub at {hub.url} has no org/nothing, or it is private and a request without a "
        "token has no access (HF_TOKEN)"
    )


def test_the_hub_says_401_for_what_it_does_not_show(hub, user, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_of_somebody_else")
    hub.answers[API] = Answer(401)
    assert line(user, "org/nothing") == (
        f"no such directory, and the hub at {hub.url} has no org/nothing, or it is private and the token in use has no "
        "access (HF_TOKEN)"
    )


def test_no_such_revision(hub, user):
    told = f"no such directory, and org/single has no revision v9 at {hub.url}"
    assert line(user, "org/single@v9") == told


@pytest.mark.parametrize("status", [401, 403])
@pytest.mark.parametrize("at", [API, "/org/single/resolve/"])
def test_gated(hub, user, status, at):
    hub.answers[at] = Answer(status, {"X-Error-Code": "GatedRepo", "X-Error-Message": "Access is restricted"})
    assert line(user, "org/single") == (
        f"org/single is gated and a request without a token has no access; ask for it at {hub.url}/org/single, then "
        "set HF_TOKEN to a token of that account"
    )


def test_gated_for_this_token(hub, user, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_of_somebody_else")
    hub.answers[API] = Answer(403, {"X-Error-Code": "GatedRepo"})
    assert "org/single is gated and the token in use has no access; ask for it at" in line(user, "org/single")


@pytest.mark.parametrize("at", [API, "/org/single/resolve/", "model.safetensors"])
@pytest.mark.parametrize(
    ("headers", "when"),
    [({"Retry-After": "120"}, "try again in 120 s"), ({}, "wait")],
)
def test_too_many_requests(hub, user, at, headers, when):
    hub.answers[at] = Answer(429, headers)
    assert line(user, "org/single") == (
        f"the hub at {hub.url} limits requests (429) for org/single; {when}, or set HF_TOKEN for a higher limit"
    )


def test_another_refusal(hub, user):
    hub.answers["model.safetensors"] = Answer(403, {"X-Error-Message": "Access to this resource is disabled."})
    assert line(user, "org/single") == (
        f"the hub at {hub.url} refused model.safetensors of org/single: 403 Access to this resource is disabled."
    )


def test_listed_and_not_there(hub, user):
    hub.answers["model.safetensors"] = Answer(404, {"X-Error-Code": "EntryNotFound"})
    told = f"org/single at main has no model.safetensors, although the hub at {hub.url} lists it"
    assert line(user, "org/single") == told


def test_no_network(hub, tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    with pytest.raises(UsageError) as caught:
        located("org/single", settings=Settings(url, tmp_path / "hub-cache", False))
    assert str(caught.value) == (
        f"no such directory, and the hub at {url} cannot be reached for org/single (Connection refused); "
        "HF_ENDPOINT names another hub, HF_HUB_OFFLINE=1 takes what is cached"
    )


def test_an_endpoint_that_is_none(hub, tmp_path):
    with pytest.raises(UsageError, match="the hub at nonsense cannot be reached for org/single"):
        located("org/single", settings=Settings("nonsense", tmp_path / "hub-cache", False))


def test_a_password_in_the_endpoint_is_not_told(hub, tmp_path):
    settings = Settings(hub.url.replace("://", "://me:secret@"), tmp_path / "hub-cache", False)
    with pytest.raises(UsageError) as caught:
        located("org/nothing", settings=settings)
    assert f"the hub at {hub.url} has no org/nothing" in str(caught.value)
    assert located("org/single", settings=settings).origin.endpoint == hub.url


def test_offline_with_nothing_cached(hub, user):
    assert line(user, "org/single", offline=True) == (
        "no such directory, and org/single at main is not in the cache while HF_HUB_OFFLINE is set; run once without "
        "it, or fetch all of it with `hf download org/single`"
    )
    assert "`hf download org/single --revision v2`" in line(user, "org/single@v2", offline=True)
    assert hub.log == []


def test_offline_with_a_config_alone(hub, user):
    hf_hub_download("org/shards", "config.json", endpoint=hub.url, cache_dir=user.hub_cache)
    assert "org/shards at main is in the cache without all of its weights while" in line(
        user, "org/shards", offline=True
    )


def test_the_library_is_not_installed(hub, user, monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    assert line(user, "org/single") == (
        "no such directory: org/single; to read it from the hub, pip install huggingface_hub"
    )


def test_real_weights_that_are_not_here(hub, user):
    hub.repositories["org/shards"].sizes |= {"a.safetensors": 40 * 10**9, "b.safetensors": 14 * 10**9}
    assert line(user, "org/shards", weights=True) == (
        "real weights of org/shards are asked for and not in the hub's cache: `hf download org/shards` fetches them "
        "(54.0 GB in all)"
    )
    assert hub.asked(".safetensors") == []
    hub.repository("org/config", {"config.json": SHARDS["config.json"]})
    assert line(user, "org/config", weights=True) == (
        "org/config has no weights on the hub, and real weights are asked for"
    )


def test_not_a_model(hub, user):
    hub.repository("org/data", {"README.md": b"x"})
    assert line(user, "org/data") == (
        "no config.json in org/data on the hub (is it a model in the library's own format?)"
    )


def absurd(length):
    return struct.pack("<Q", length) + A[8:]


@pytest.mark.parametrize("length", [2**63, LONGEST_HEADER + 1, len(A) - 7])
def test_a_header_of_absurd_length(hub, user, length):
    hub.repository("org/bad", {**SINGLE, "model.safetensors": absurd(length)})
    assert line(user, "org/bad") == (
        f"model.safetensors of org/bad cannot be trusted: its header would be {length} bytes long, the file has "
        f"{len(A)}"
    )
    assert sum(request.sent for request in hub.asked("model.safetensors")) == 8


def test_a_file_of_another_size_than_listed(hub, user):
    hub.repository("org/bad", SINGLE).sizes["model.safetensors"] = 10**12
    assert line(user, "org/bad") == (
        f"model.safetensors of org/bad cannot be trusted: it is listed with 1000000000000 bytes and has {len(A)}"
    )


@pytest.mark.parametrize("name", ["../config.json", "/etc/x.safetensors", "a/../../b.safetensors", "a\\b.safetensors"])
def test_an_index_that_points_outside(hub, user, name):
    hub.repository("org/bad", {**SHARDS, INDEX: index({"a.weight": name})})
    assert line(user, "org/bad") == f"{INDEX} of org/bad cannot be trusted: it names {name!r} outside of it"


def test_an_index_that_takes_a_small_file_for_weights_writes_nothing_there(hub, user):
    hub.repository("org/bad", {**SHARDS, INDEX: index({"a.weight": "config.json"})})
    assert (Path(user("org/bad").path) / "config.json").read_bytes() == SHARDS["config.json"]


@pytest.mark.parametrize("name", ["../../.bashrc", "/etc/passwd", "a//b", "..", "a\\b", "line\nbreak"])
def test_a_list_with_names_of_no_repository(hub, user, name):
    hub.repository("org/bad", {**SINGLE, name: b""})
    assert line(user, "org/bad") == f"the hub's list of files of org/bad cannot be trusted: it names {name!r}"


def test_a_small_file_that_is_not_small(hub, user):
    hub.repository("org/bad", SHARDS).sizes["tokenizer.json"] = 3 * 10**9
    assert line(user, "org/bad") == "tokenizer.json of org/bad is not fetched: the hub says that it has 3.0 GB"


@pytest.mark.parametrize("cut", [3, 20])
def test_a_header_that_breaks_off(hub, user, cut):
    hub.cut["model.safetensors"] = cut
    told = line(user, "org/single")
    assert told.startswith(f"the answer of the hub at {hub.url} broke off (model.safetensors of org/single: ")


@pytest.mark.parametrize(
    "body", [b"<html>Please log in</html>", b"[]", b"null", b'{"id": "org/single"}', b'{"id": "x", "siblings": 3}']
)
def test_no_answer_of_a_hub(hub, user, body):
    hub.answers[API] = Answer(200, {"Content-Type": "application/json"}, body)
    assert hub.url in line(user, "org/single")


@pytest.mark.parametrize("commit", ["../../x", "main", "0" * 39, None])
def test_a_commit_that_is_none(hub, user, commit):
    listed = json.dumps({"id": "org/single", "sha": commit, "siblings": []}).encode()
    hub.answers[API] = Answer(200, {}, listed)
    assert line(user, "org/single") == f"the hub at {hub.url} names no commit for org/single: {str(commit)!r}"


def test_a_cache_that_cannot_be_written(hub, user, monkeypatch, tmp_path):
    (tmp_path / "cache").write_text("a file")
    told = line(user, "org/single")
    assert told == f"cannot keep files of org/single in {kept.cache_directory()}: Not a directory"


def test_what_failed_leaves_nothing_half_done(hub, user):
    hub.cut["b.safetensors"] = 20
    line(user, "org/shards")
    assert list(kept.cache_directory().rglob("*.safetensors")) == []
    hub.cut.clear()
    line(user, "org/shards", offline=True)
    assert user("org/shards").origin.weights == "headers"
