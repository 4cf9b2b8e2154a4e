"""The test bench: one tree, one target, one draft, and runs of the tree's own generation functions under watch."""

from __future__ import annotations

import json
import random
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from compatfix.introspect.tiny import TinyTarget, build_tiny_draft_config, build_tiny_target
from compatfix.validate.caches import RUNTIME
from compatfix.validate.claims import changes
from compatfix.validate.devices import input_device
from compatfix.validate.entries import Entry, TreeError
from compatfix.validate.load_tree import LoadedTree, layer_in, load_tree, place_in
from compatfix.validate.oracle import ORACLE, Head, Oracle, Profile, Truth
from compatfix.validate.results import Output, collected, read_output
from compatfix.validate.roles import Choices, call_arguments, parse_choices
from compatfix.validate.watch import Tamper, Watch

# Lengths below a convolution kernel first, then short ones, then ones that fill a tiny window before they start.
PROMPT_LENGTHS = (2, 3, 1, 5, 21, 9, 14, 7, 30, 4, 12, 17)
DEFAULT_LOADER = "AutoModelForCausalLM"
# What a DFlash draft usually looks like, for a target that comes without one.
PLAIN_DRAFT = {
    "model_type": "qwen3",
    "block_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 128,
    "hidden_size": 1024,
    "intermediate_size": 2048,
    "dflash_config": {"mask_token_id": 0},
}


@dataclass(frozen=True)
class Mode:
    """How to generate: "plain" (block size 1), "chain", "tree" with a budget, or the draft's own "loop"."""

    kind: str
    budget: int | None = None

    @property
    def name(self) -> str:
        return f"tree-{self.budget}" if self.kind == "tree" else self.kind


PLAIN = Mode("plain")
CHAIN = Mode("chain")
LOOP = Mode("loop")


@dataclass
class Run:
    """One generation. `error` is what `describe` says, where it raised.

    `lengths` are the tokens committed per round as the watch saw them, `claimed` what the tree says they were;
    `unread` and `counts` as in Output. `changed` says which of its arguments the call changed.
    """

    tokens: list[int]
    watch: Watch
    lengths: list[int] = field(default_factory=list)
    claimed: list[int] | None = None
    unread: tuple[str, str] | None = None
    counts: Mapping[str, float] = field(default_factory=dict)
    changed: list[str] = field(default_factory=list)
    prompt_kept: bool = True
    stage_times: dict[str, float] = field(default_factory=dict)
    seconds: float = 0.0
    error: dict[str, Any] | None = None
    recomputed: int = 0


@dataclass
class Bench:
    """`mask` is a token that the target cannot emit; `plain_tokens` may stand in prompts."""

    tree: LoadedTree
    target: nn.Module
    draft: nn.Module
    block: int
    mask: int
    plain_tokens: range
    seed: int
    tiny: TinyTarget | None = None

    def __post_init__(self) -> None:
        self.head = Head(self.target)
        self.head.vocab = min(self.head.vocab, len(self.plain_tokens))
        self.truth = Truth(self.target, lambda: self.watch.quiet())
        self.oracle = Oracle(self.head, self.truth, self.seed)
        self.watch = Watch(self.target, self.draft, self.head, self.oracle, self.tree.modules)

    @property
    def layer_ids(self) -> list[int]:
        return [int(i) for i in getattr(self.draft, "target_layer_ids", None) or ()]

    def modes(self, budgets: Sequence[int]) -> list[Mode]:
        """The modes that this tree has, plain decoding left out."""
        found = [CHAIN] if self.tree.chain else []
        return found + ([Mode("tree", budget) for budget in budgets] if self.tree.tree else [])

    def prompt(self, index: int) -> list[int]:
        draw = random.Random(self.seed * 10_007 + index)
        length = PROMPT_LENGTHS[index % len(PROMPT_LENGTHS)]
        return [draw.choice(self.plain_tokens) for _ in range(length)]

    def run(
        self,
        mode: Mode,
        prompt: Sequence[int],
        tokens: int,
        *,
        reference: Sequence[int] = (),
        profile: Profile | None = ORACLE,
        stops: Sequence[int] | None = (),
        mask: int | None = None,
        salt: int = 0,
        keep_logits: bool = False,
        tamper: Tamper | None = None,
        sampler: Mapping[str, float] | None = None,
    ) -> Run:
        """Generates once. `profile` None leaves the draft as it is: the random draft. `sampler` holds temperature and
        what goes with it, by parameter name; without it decoding is greedy."""
        mask = self.mask if mask is None else mask
        if profile is not None:
            self.oracle.start(profile, prompt, reference, frozenset({mask}), salt)
        self.watch.mask = mask
        self.watch.keep_logits, self.watch.tamper = keep_logits, tamper
        self.watch.begin(prompt, replace_draft=profile is not None)
        run = Run([], self.watch)
        input_ids = torch.tensor([list(prompt)], device=input_device(self.target))
        stopping = None if stops is None else list(stops)
        try:
            with self.watch.installed():
                result = self.call(mode, input_ids, tokens, stopping, mask, sampler or {})
            output = self.read(mode, result, prompt)
        except Exception as error:
            # A result that does not fit is the fault of one entry point, and says nothing of the others.
            if isinstance(error, TreeError) and error.code != "CF917":
                raise
            run.error = describe(self.tree.root, error, self.watch.owners())
            return run
        finally:
            self.watch.tamper = None
        run.tokens, run.prompt_kept, run.claimed = output.tokens, output.kept, output.lengths
        run.unread, run.counts = output.unread, output.counts
        run.changed = changes("input_ids", [list(prompt)], input_ids.tolist())
        run.changed += changes("stop_token_ids", None if stops is None else list(stops), stopping)
        run.stage_times = dict(output.stage_times)
        run.lengths = accepted_lengths(self.watch)
        run.recomputed = self.oracle.recomputed if profile is not None else 0
        return run

    def entry_point(self, mode: Mode) -> tuple[str, frozenset[str]]:
        """The name of the function that generates in this mode, and the roles among its parameters."""
        entry = self._entry(mode)
        return entry.name, frozenset(entry.call.roles)

    def call(
        self,
        mode: Mode,
        input_ids: Tensor,
        tokens: int,
        stops: list[int] | None,
        mask: int,
        sampler: Mapping[str, float],
    ) -> Any:
        """Generates once without a watch: whatever the tree's function returns, or raises."""
        entry = self._entry(mode)
        block = 1 if mode.kind == "plain" else self.block
        values: dict[str, Any] = {
            "draft": self.draft,
            "target": self.target,
            "input_ids": input_ids,
            "mask_token_id": mask,
            "max_new_tokens": tokens,
            "block_size": block,
            "stop_token_ids": stops,
            "tree_budget": mode.budget,
            "temperature": 0.0,
            "return_stats": True,
            "device": input_ids.device,
            "verbose": False,
            **sampler,
        }
        # A draft's own loop reads both from the draft, where it does not take them.
        held = {"mask_token_id": mask} | ({} if "block_size" in entry.call.roles else {"block_size": block})
        previous = {name: getattr(self.draft, name) for name in held if getattr(self.draft, name, None) is not None}
        function = entry.function.__get__(self.draft) if entry.method else entry.function
        positional, named = call_arguments(entry.signature, entry.call, values)
        try:
            for name in previous:
                setattr(self.draft, name, held[name])
            return collected(function(*positional, **named), entry)
        finally:
            for name, value in previous.items():
                setattr(self.draft, name, value)

    def read(self, mode: Mode, result: Any, prompt: Sequence[int]) -> Output:
        """What `call` returned, understood. Raises TreeError (CF917) where it holds no output ids that fit."""
        return read_output(result, prompt, self._entry(mode))

    def _entry(self, mode: Mode) -> Entry:
        of_kind = {"tree": self.tree.tree, "loop": self.tree.loop}
        entry = of_kind.get(mode.kind, self.tree.chain or self.tree.tree)
        if entry is None:
            raise TreeError("CF907", f"the tree has no function for {mode.name}")
        return entry


def chosen(args: Mapping[str, Any]) -> Choices:
    """What the user said of the entry points, as a job's arguments carry it."""
    return parse_choices(args.get("entries", ()), args.get("arguments", ()), args.get("results", ()))


def build_bench(args: dict[str, Any], *, dtype: torch.dtype = torch.float32) -> Bench:
    """The tree on a tiny target of the class that the tree itself loads, with its own draft class.

    Raises TreeError, or what building the tiny models raises.
    """
    tree = load_tree(Path(args["tree"]), chosen(args))
    config = read_config(Path(args["target"]))
    loader = args.get("loader") or tree.loader or DEFAULT_LOADER
    tiny = build_tiny_target(config, loader, seed=args["seed"], dtype=dtype)
    if dtype is torch.float32:
        tiny.model.float()
    draft_dir = args.get("draft")
    draft_config = read_config(Path(draft_dir)) if draft_dir else plain_draft(config)
    small = build_tiny_draft_config(draft_config, tiny.tiny)
    draft = _build_draft(tree, small.config, args["seed"], dtype)
    return Bench(
        tree=tree,
        target=tiny.model,
        draft=draft,
        block=small.block_size,
        mask=small.mask_token_id,
        plain_tokens=tiny.plain_tokens,
        seed=args["seed"],
        tiny=tiny,
    )


def read_config(directory: Path) -> dict[str, Any]:
    content = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    assert isinstance(content, dict)
    return content


def describe(root: Path, error: BaseException, owners: Sequence[tuple[str, Any]] = ()) -> dict[str, Any]:
    """An exception as plain data, with the line of the tree and the layer of an owner that it went through.

    `refused` is true of the runtime's own exception; `start_up` where it says that no strategy fits the target. `code`
    is there where it is known what it means.
    """
    if isinstance(error, TreeError):
        known = {"type": error.code, "message": str(error), "code": error.code, "details": dict(error.detail)}
        return {**known, "place": None, "layer": None, "refused": False, "start_up": False}
    lines = str(error).strip().splitlines()
    refused = type(error).__module__.split(".")[0] == RUNTIME
    return {
        "type": type(error).__name__,
        "message": lines[0] if lines else "",
        "place": place_in(root, error),
        "layer": layer_in(error, owners),
        "refused": refused,
        "start_up": refused and _measuring(error),
    }


def _measuring(error: BaseException) -> bool:
    """Whether the exception came out of the runtime's choice of a strategy, not out of a call that used one."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    return any(frame.f_globals.get("__name__") == f"{RUNTIME}.plans" for frame in frames)


def accepted_lengths(watch: Watch) -> list[int]:
    """Tokens committed per round, whatever the tree says; the last round is the greedy walk."""
    lengths = watch.counts[1:]
    return [*lengths, len(watch.rounds[-1].walk())] if watch.rounds and watch.counts else lengths


def _build_draft(tree: LoadedTree, config: dict[str, Any], seed: int, dtype: torch.dtype) -> nn.Module:
    draft_class: Any = tree.draft_class
    small = draft_class.config_class.from_dict(config)
    torch.manual_seed(seed)
    draft = draft_class._from_config(small, attn_implementation="sdpa").to(dtype).eval()
    assert isinstance(draft, nn.Module)
    return draft


def plain_draft(target: dict[str, Any]) -> dict[str, Any]:
    text = next((target[k] for k in ("text_config", "llm_config") if isinstance(target.get(k), dict)), target)
    known = {name: text[name] for name in ("hidden_size", "vocab_size") if name in text}
    return {**PLAIN_DRAFT, **known, "num_target_layers": text.get("num_hidden_layers", 1)}
