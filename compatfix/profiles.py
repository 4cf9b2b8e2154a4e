"""What inspection learns about a target, a draft and an environment, as plain data. Nothing here imports torch.

Checks read these; `compatfix.introspect.statements` makes them into sentences for a report.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from compatfix.model import Answer, Statement


@dataclass(frozen=True)
class ClassProfile:
    """One class that a loader gives for the config: where its parts are, and how large it is.

    Paths are attribute paths from the model; `None` where the class has no such part. `nesting` goes from the model
    down to the list of decoder layers. `loaders` are Auto classes, or the own name in config.architectures.
    `claimed` says of paths that code or notes take for granted whether they exist here; `noted` are those of notes.
    """

    name: str
    loaders: tuple[str, ...]
    tensors: int
    parameters: int
    nesting: tuple[str, ...]
    embedding: str | None
    layers: str | None
    norm: str | None
    head: str | None
    tied: bool
    claimed: Mapping[str, bool] = field(default_factory=dict)
    noted: tuple[str, ...] = ()


@dataclass(frozen=True)
class CacheProfile:
    """The cache that the config gives. `kinds` counts layers: "linear", "full", "sliding", "hybrid", "none".

    `layers` names the kind of each layer, in their order.
    """

    class_name: str
    layer_classes: Mapping[str, int]
    kinds: Mapping[str, int]
    first: str
    layers: tuple[str, ...] = ()


@dataclass(frozen=True)
class StateProfile:
    """What one sequence keeps in the cache, in bytes, counted on the skeleton of the real config.

    `kv_per_token` sums over the layers that grow without bound, `window_bytes` over sliding layers with a full window,
    `recurrent` and `conv` over the layers that keep a state. `record_per_node` is what a gated-delta tree records for a
    node, 0 where that strategy does not apply.
    """

    kv_per_token: int
    window_bytes: int
    recurrent: int
    conv: int
    record_per_node: int
    counted: bool

    @property
    def state(self) -> int:
        return self.recurrent + self.conv


@dataclass(frozen=True)
class TargetProfile:
    """A target model without its weights. `answers` are what was measured on a tiny model of `class_name`."""

    path: str
    model_type: str
    architectures: tuple[str, ...]
    class_name: str
    classes: tuple[ClassProfile, ...]
    hidden_size: int
    vocab_size: int
    num_layers: int
    layer_types: tuple[str, ...]
    dtype: str
    dtype_bytes: int
    sliding_window: int | None
    quantised: str | None
    cache: CacheProfile | None
    states: StateProfile | None
    transforms: Mapping[str, float] = field(default_factory=dict)
    kernels: tuple[str, ...] = ()
    strategy: str | None = None
    answers: tuple[Answer, ...] = ()
    tiny: tuple[Statement, ...] = ()

    @property
    def chosen(self) -> ClassProfile:
        return next(profile for profile in self.classes if profile.name == self.class_name)

    @property
    def absent_paths(self) -> tuple[str, ...]:
        """Paths that public notes name for a multimodal wrapper and that no class of this one has."""
        if len(self.classes) < 2:
            return ()
        return tuple(p for p in self.chosen.noted if not any(c.claimed.get(p) for c in self.classes))

    def answer(self, probe: str) -> Answer | None:
        return next((answer for answer in self.answers if answer.probe == probe), None)

    def value(self, probe: str, key: str, default: Any = None) -> Any:
        """One entry of what a probe measured; `default` where the probe failed or did not run."""
        answer = self.answer(probe)
        if answer is None or not isinstance(answer.value, Mapping):
            return default
        return answer.value.get(key, default)


@dataclass(frozen=True)
class DraftProfile:
    """A DFlash-style draft, read from its config alone. `None` means that the config does not say.

    `block_size_at`, `mask_token_at` and `layer_ids_at` tell where a field stands: "top", "dflash_config", "both", or
    "nowhere". `layer_ids` are the effective ones: those of the config, or those that the published rule derives.
    `missing` names what a DFlash draft needs and this config lacks: then the rest means nothing.
    """

    path: str
    num_layers: int
    hidden_size: int
    vocab_size: int
    intermediate_size: int
    heads: int
    kv_heads: int
    head_dim: int
    block_size: int | None
    block_size_at: str
    mask_token_id: int | None
    mask_token_at: str
    layer_ids: tuple[int, ...]
    layer_ids_at: str
    num_target_layers: int | None
    sliding_layers: int
    sliding_window: int | None
    rope_theta: float | None
    dtype: str
    dtype_bytes: int
    parameters: int
    embedding_scale: float | None = None
    logit_softcap: float | None = None
    remote_code: bool = False
    missing: tuple[str, ...] = ()


@dataclass(frozen=True)
class TensorMatch:
    """A checkpoint's tensors held against the class that would load them, by the class's own names.

    `other_shape`: name, shape stored, shape wanted. `left_out` counts tensors that the class leaves out on purpose, by
    module. `tied` are parameters that share another one's tensor; `tied_stored` those stored all the same.
    `error`: why the library could not be asked.
    """

    class_name: str
    wanted: int = 0
    missing: tuple[str, ...] = ()
    surplus: tuple[str, ...] = ()
    other_shape: tuple[tuple[str, str, str], ...] = ()
    left_out: Mapping[str, int] = field(default_factory=dict)
    tied: tuple[str, ...] = ()
    tied_stored: tuple[str, ...] = ()
    error: str | None = None


@dataclass(frozen=True)
class Share:
    """Of one part of the model (mlp, self_attn, lm_head): how many of its matrices are stored quantised."""

    part: str
    quantised: int
    matrices: int
    recurrent: bool = False


@dataclass(frozen=True)
class Quantisation:
    """How a checkpoint is quantised: `form` is the method's own name for its variant, `kept` are the modules that the
    config leaves out, `rotated` names transforms that rotate the hidden states, `shares` are read from headers."""

    method: str
    form: str | None = None
    bits: int | None = None
    kept: tuple[str, ...] = ()
    rotated: str | None = None
    shares: tuple[Share, ...] = ()


@dataclass(frozen=True)
class CheckpointProfile:
    """The weights in a model directory, from headers and indices alone; see compatfix.checkpoint.directory.

    `by_dtype`: tensors, parameters and bytes of each stored dtype.
    """

    path: str
    form: str
    files: tuple[str, ...] = ()
    tensors: int = 0
    parameters: int = 0
    bytes: int = 0
    by_dtype: Mapping[str, tuple[int, int, int]] = field(default_factory=dict)
    pickles: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()
    match: TensorMatch | None = None


@dataclass(frozen=True)
class EndTokens:
    """Ids that end a text, by who names them. `generation` is None without a generation_config.json."""

    config: tuple[int, ...] = ()
    generation: tuple[int, ...] | None = None
    tokenizer: int | None = None

    @property
    def all(self) -> tuple[int, ...]:
        named = {*self.config, *(self.generation or ())}
        return tuple(sorted(named | ({self.tokenizer} if self.tokenizer is not None else set())))


@dataclass(frozen=True)
class TokenizerProfile:
    """The tokenizer in a model directory. `tokens` is 0 where its files are of a form that is not read.

    `highest` is the largest id; `roles` maps bos_token and its like to ids; `switches` are variables of the chat
    template that turn thinking on or off; `digest` tells vocabularies apart. `mask_token` is the text of the draft's
    mask token, None where it lies outside. `returns` is the class that
    apply_chat_template(return_tensors="pt") gives here, None where it was not asked.
    """

    path: str
    files: tuple[str, ...]
    tokens: int = 0
    highest: int | None = None
    special: int = 0
    roles: Mapping[str, int | None] = field(default_factory=dict)
    ends: EndTokens = field(default_factory=EndTokens)
    template: bool = False
    switches: tuple[str, ...] = ()
    digest: str | None = None
    problems: tuple[str, ...] = ()
    returns: str | None = None
    mask_token: str | None = None


@dataclass(frozen=True)
class Package:
    """An optional package: its version or None, whether this target has a use for it, and what its absence costs."""

    name: str
    version: str | None
    wanted: bool
    effect: str
    cost: str
    command: str


@dataclass(frozen=True)
class Device:
    """A place that weights could live in. `given` is true for one named by the user and not seen here.

    `free` is what is free of its `bytes` now, None where nobody asked.
    """

    name: str
    kind: str
    bytes: int
    given: bool = False
    free: int | None = None


@dataclass(frozen=True)
class FastPath:
    """What the layers of a model really call where a package has a fast function.

    `state` is "used", "partly" or "fallback"; `called` are functions of the package, `substitutes` those that ran in
    their place (of transformers; the layers' own forward where none has a name).
    """

    package: str
    state: str
    called: tuple[str, ...] = ()
    substitutes: tuple[str, ...] = ()


@dataclass(frozen=True)
class EnvironmentProfile:
    """The environment under test."""

    python: str
    torch: str
    transformers: str
    packages: tuple[Package, ...]
    devices: tuple[Device, ...]

    def package(self, name: str) -> Package | None:
        return next((package for package in self.packages if package.name == name), None)


@dataclass(frozen=True)
class MemoryItem:
    """One part of the memory plan, in bytes. `counted` is false for a part shown for comparison only."""

    key: str
    text: str
    bytes: int
    counted: bool = True


@dataclass(frozen=True)
class MemoryPlan:
    """What a run needs at `context` tokens; `fits` and `verdicts` compare it with devices."""

    context: int
    tree_budget: int
    items: tuple[MemoryItem, ...]
    devices: tuple[Device, ...]
    fits: bool | None
    verdicts: tuple[str, ...]

    @property
    def total(self) -> int:
        return sum(item.bytes for item in self.items if item.counted)

    def item(self, key: str) -> MemoryItem | None:
        return next((item for item in self.items if item.key == key), None)


@dataclass(frozen=True)
class Inspection:
    """Everything that `inspect` found, before checks: the result of the worker's job."""

    target: TargetProfile
    draft: DraftProfile | None
    environment: EnvironmentProfile
    memory: MemoryPlan
    statements: tuple[Statement, ...]
    checkpoint: CheckpointProfile | None = None
    draft_checkpoint: CheckpointProfile | None = None
    tokenizer: TokenizerProfile | None = None
    draft_tokenizer: TokenizerProfile | None = None
    quantisation: Quantisation | None = None
