"""Patched code says at its start whether it is what was judged."""

from __future__ import annotations

import importlib
import json
import shutil
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import compatfix.runtime
from compatfix.attest.state import tree_state

from . import tiny
from .drafts import build as build_draft

SOURCE = Path(compatfix.runtime.__file__).parent


class Place:
    """A tree with its copy of the runtime, imported; a target and a draft that run through it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.runtime: Any = importlib.import_module("compatfix_runtime")
        self.attest: Any = importlib.import_module("compatfix_runtime.attest")
        self.surroundings: Any = importlib.import_module("compatfix_runtime.surroundings")
        self.generation: Any = importlib.import_module("generation_loop")
        self.target = tiny.build("qwen3")
        self.draft = build_draft()

    def start(self) -> None:
        """A prefill and a block, as a generation begins."""
        self.attest.note_draft(self.draft)
        cache = self.runtime.new_cache(self.target)
        with torch.inference_mode():
            for size in (5, 3):
                self.runtime.verify(self.target, torch.arange(size)[None], past_key_values=cache)
        assert cache.get_seq_length() == 8

    def judge(self, scopes: tuple[str, ...] = ("code",), key: str = "target", **changes: Any) -> None:
        """Leaves the verdict of a run that saw exactly what there is now, but for `changes`."""
        strategy = self.runtime.describe(self.target)["strategy"]
        on = "weights" if "weights" in scopes else "tiny"
        run = self.surroundings.observed(self.target, self.draft, strategy, weights=on == "weights")
        states = {s: "passed" if s in scopes else "unmeasured" for s in ("code", "kernels", "weights")}
        entry = {"time": "2026-12-01T05:00", "scopes": states, "runs": [{"on": on, **json.loads(json.dumps(run))}]}
        entry["tree"] = {name: state for name, state in tree_state(self.root).items() if name.endswith(".py")}
        file = self.root / "compatfix_runtime" / "attest.json"
        kept = json.loads(file.read_text())["verdicts"] if file.exists() else {}
        file.write_text(json.dumps({"schema": 1, "verdicts": {**kept, key: {**entry, **changes}}}))


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    shutil.copytree(SOURCE, tmp_path / "compatfix_runtime", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "generation_loop.py").write_text("STEPS = 1\n")
    (tmp_path / "unused.py").write_text("")
    (tmp_path / "helpers").mkdir()
    (tmp_path / "helpers" / "__init__.py").write_text("")
    (tmp_path / "helpers" / "sampling.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delenv("COMPATFIX_ATTEST", raising=False)
    before = set(sys.modules)
    yield Place(tmp_path)
    for name in set(sys.modules) - before:
        if name.split(".")[0] in ("compatfix_runtime", "generation_loop", "helpers"):
            del sys.modules[name]


def lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return [line for line in capsys.readouterr().err.splitlines() if line.startswith("compatfix: ")]


def test_without_a_verdict_it_says_how_to_get_one(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    place.start()
    (line,) = lines(capsys)
    assert "no green verdict is kept for this tree" in line
    assert f"compatfix gate {place.root}" in line


def test_what_was_judged_is_said_to_be_so_once(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    place.judge()
    place.start()
    place.start()
    expected = "compatfix: as judged 2026-12-01T05:00 (code passed; kernels, weights unmeasured)"
    assert lines(capsys) == [expected]


def other_draft(place: Place) -> None:
    class DFlashDraftModel(type(place.draft)):  # type: ignore[misc] # the same name from another file
        pass

    DFlashDraftModel.__qualname__ = type(place.draft).__qualname__
    place.draft.__class__ = DFlashDraftModel


def shadowed(place: Place) -> None:
    elsewhere = types.ModuleType("helpers.sampling")
    elsewhere.__file__ = "/somewhere/site-packages/helpers/sampling.py"
    sys.modules["helpers.sampling"] = elsewhere


def with_package(place: Place) -> None:
    package = types.ModuleType("fla")
    package.__version__ = "0.4.1"  # type: ignore[attr-defined]
    sys.modules["fla"] = package


def edit(name: str) -> Callable[[Place], None]:
    return lambda place: (place.root / name).open("a").write("# edited\n") and None


def weight(part: str) -> Callable[[Place], None]:
    def change(place: Place) -> None:
        with torch.no_grad():
            next(getattr(place, part).parameters()).mul_(1.5)

    return change


CHANGES: dict[str, tuple[Callable[[Place], object], str]] = {
    "a file that is imported": (edit("generation_loop.py"), "generation_loop.py differs"),
    "the runtime itself": (edit("compatfix_runtime/masks.py"), "compatfix_runtime/masks.py differs"),
    "a module from elsewhere": (shadowed, "module helpers.sampling comes from /somewhere/site-packages/"),
    "a kernel package": (with_package, "fla is 0.4.1, judged without it"),
    "attention": (
        lambda place: place.target.set_attn_implementation("eager"),
        "target attention is eager, judged sdpa",
    ),
    "the target's dtype": (lambda place: place.target.to(torch.float64), "target dtype is float64, judged float32"),
    "the draft's dtype": (lambda place: place.draft.to(torch.bfloat16), "draft dtype is bfloat16, judged float32"),
    "the draft's mode": (lambda place: place.draft.train(), "draft training is True, judged False"),
    "a flag": (
        lambda place: torch.use_deterministic_algorithms(True),
        "deterministic algorithms is True, judged False",
    ),
    "a config": (lambda place: setattr(place.target.config, "rms_norm_eps", 0.5), "target rms_norm_eps is 0.5"),
    "an inner config": (
        lambda place: place.target.config.rope_parameters.update(rope_theta=77.0),
        "target rope_parameters.rope_theta is 77.0",
    ),
    "the target's weights": (weight("target"), "target weights differ"),
    "the draft's weights": (weight("draft"), "draft weights differ"),
    "the draft's class": (other_draft, "draft class is "),
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_change_is_named(what: str, place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    change, words = CHANGES[what]
    place.judge(("code", "weights"))
    try:
        change(place)
        place.start()
    finally:
        torch.use_deterministic_algorithms(False)
        sys.modules.pop("fla", None)
    (line,) = lines(capsys)
    assert line.startswith("compatfix: not as judged 2026-12-01T05:00 (code, weights passed; kernels unmeasured): ")
    assert words in line


def test_files_that_are_not_imported_do_not_count(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    place.judge()
    edit("unused.py")(place)
    place.start()
    assert "compatfix: as judged" in lines(capsys)[0]


def test_a_tiny_run_says_nothing_of_weights(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    place.judge()
    weight("target")(place)
    place.start()
    assert "compatfix: as judged" in lines(capsys)[0]


def test_of_several_verdicts_the_nearest_speaks(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    place.judge(("code",), key="other", tree={})
    place.judge(("code", "weights"), key="same pair, with weights")
    place.judge(("code",), key="same pair", time="2025-01-01")
    place.start()
    assert "as judged 2026-12-01T05:00 (code, weights passed" in lines(capsys)[0]


def test_many_differences_are_counted_and_can_be_listed(
    place: Place, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    place.judge()
    place.target.to(torch.float64).train()
    place.draft.to(torch.float64)
    place.target.set_attn_implementation("eager")
    edit("generation_loop.py")(place)
    place.start()
    (line,) = lines(capsys)
    assert "; and 2 more, COMPATFIX_ATTEST=all lists them" in line
    place.target = tiny.build("qwen3").to(torch.float64).train()
    place.target.set_attn_implementation("eager")
    monkeypatch.setenv("COMPATFIX_ATTEST", "all")
    place.start()
    (line,) = lines(capsys)
    assert "more" not in line
    assert "target training is True" in line


def test_required_it_refuses_before_the_block_and_leaves_the_cache(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COMPATFIX_ATTEST", "require")
    place.judge()
    edit("generation_loop.py")(place)
    cache = place.runtime.new_cache(place.target)
    with torch.inference_mode():
        place.runtime.verify(place.target, torch.arange(5)[None], past_key_values=cache)
        for _ in range(2):  # asked again, it refuses again
            with pytest.raises(place.runtime.RuntimeRefusal, match=r"generation_loop\.py differs.*COMPATFIX_ATTEST=re"):
                place.runtime.verify(place.target, torch.arange(3)[None], past_key_values=cache)
    assert cache.get_seq_length() == 5


@pytest.mark.parametrize(("variable", "value"), [("COMPATFIX_ATTEST", "off"), ("RANK", "3"), ("SLURM_PROCID", "1")])
def test_silence(
    variable: str, value: str, place: Place, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(variable, value)
    place.start()
    assert lines(capsys) == []


@pytest.mark.parametrize("text", ["", "{", "[]", '{"schema": 1}', '{"schema": 1, "verdicts": {"a": {}}}', "\x00"])
def test_a_broken_verdict_ends_no_generation(text: str, place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    (place.root / "compatfix_runtime" / "attest.json").write_text(text)
    place.start()
    (line,) = lines(capsys)
    assert "cannot be read" in line or "cannot compare" in line


def test_another_place_for_the_verdict(
    place: Place, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path_factory: Any
) -> None:
    place.judge()
    kept = tmp_path_factory.mktemp("reports") / "attest.json"
    (place.root / "compatfix_runtime" / "attest.json").rename(kept)
    monkeypatch.setenv("COMPATFIX_VERDICT", str(kept))
    place.start()
    assert "compatfix: as judged" in lines(capsys)[0]


def test_without_a_draft_the_line_says_that_none_was_seen(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    place.judge()
    cache = place.runtime.new_cache(place.target)
    with torch.inference_mode():
        for size in (5, 3):
            place.runtime.verify(place.target, torch.arange(size)[None], past_key_values=cache)
    assert "no draft was seen, judged with" in lines(capsys)[0]


def test_the_runtime_of_the_tool_itself_has_nothing_to_say(capsys: pytest.CaptureFixture[str]) -> None:
    model = tiny.build("qwen3")
    cache = compatfix.runtime.new_cache(model)
    with torch.inference_mode():
        for size in (5, 3):
            compatfix.runtime.verify(model, torch.arange(size)[None], past_key_values=cache)
    assert lines(capsys) == []
