"""The one registry of codes: one code per incompatibility, shared by the check that finds it and its rewrite.

CF0xx environment and worker · CF1xx structure · CF2xx cache and rollback · CF3xx tree verification ·
CF4xx draft pairing · CF5xx transformers API drift · CF6xx devices, dtypes and memory · CF7xx sampling and output ·
CF9xx validation.

A code that a rewrite rule fixes has its page in the rule's docstring; every other code has it here.
"""

from __future__ import annotations

from dataclasses import dataclass

from compatfix.model import Level


@dataclass(frozen=True)
class Code:
    """`name` is kebab-case and reads as "allow NAME"; `level` is the level of its findings unless they say otherwise.

    `what`, `why` and `do` make the page of a code without a rule; they are empty where a rule holds the page.
    """

    code: str
    name: str
    level: Level
    title: str
    what: str = ""
    why: str = ""
    do: str = ""


_TABLE = (
    # -- CF0xx environment and worker
    Code("CF001", "missing-accelerate", "warning", "accelerate is not installed",
         "`device_map=` in from_pretrained needs accelerate.",
         "Loading stops with an ImportError after the download, before a single weight is read.",
         "pip install accelerate"),
    Code("CF002", "missing-linear-attention-kernels", "warning", "flash-linear-attention is not installed",
         "Gated DeltaNet and related layers run on the library's reference kernels.",
         "Slow, not wrong: outputs are the same, each linear layer takes several times as long.",
         "pip install flash-linear-attention"),
    Code("CF003", "missing-causal-conv1d", "warning", "causal-conv1d is not installed",
         "The short convolution of linear-attention layers runs on the reference implementation.",
         "Slow, not wrong.",
         "pip install causal-conv1d"),
    Code("CF004", "missing-flash-attention", "note", "flash-attn is not installed",
         "Code that asks for flash_attention_2 by name cannot have it.",
         "An ImportError at load, or slower attention where the code falls back to sdpa.",
         "pip install flash-attn --no-build-isolation (needs CUDA), or use sdpa"),
    Code("CF005", "unknown-model-type", "error", "this transformers does not know the model type",
         "config.json names a model_type that the installed transformers has no class for.",
         "Nothing can be built or loaded, so nothing about this target can be measured here.",
         "install a transformers that has the model type"),
    Code("CF006", "remote-code", "error", "the target needs code that is not in transformers",
         "config.json maps its classes to Python files of its own (`auto_map`) and no class of the library fits.",
         "Running it means running somebody's code; compatfix does not do that unasked.",
         "use a model type that transformers has, or review the code and add it to the library"),
    Code("CF010", "worker-crashed", "error", "the worker process died",
         "The process that imports torch ended without an answer.",
         "A crash in a kernel or a killed process; the finding names the last thing that it was doing.",
         "run again with -v to see the end of its error output"),
    Code("CF011", "worker-timed-out", "error", "the worker process took too long",
         "A step did not finish within its time limit and was stopped.",
         "A hang in a model's forward, or a machine much slower than expected.",
         "raise the limit with --time-limit"),
    Code("CF012", "worker-out-of-memory", "error", "the worker process ran out of memory",
         "An allocation failed, or the system killed the process for memory.",
         "The step needs more memory than the limit or the machine has.",
         "raise --memory-limit, or free memory"),
    Code("CF013", "probe-failed", "error", "a probe raised an exception",
         "An experiment on the tiny model ended in an exception that is not itself the answer.",
         "What it would have measured is unknown, so nothing is claimed about it.",
         "run again with -v to see the traceback"),
    # -- CF1xx structure
    Code("CF101", "embedding-path", "error", "input embeddings are taken by a path that not every class has"),
    Code("CF102", "head-path", "error", "the output head is taken by a path that not every class has"),
    Code("CF103", "hidden-state-index", "warning", "hidden states are indexed without a check of device and range"),
    Code("CF104", "wrong-path-in-notes", "note", "a path that public notes name does not exist",
         "Notes about a model name an attribute path that none of its classes has.",
         "Code written from the notes fails with an AttributeError on the first forward.",
         "use get_input_embeddings(), which every class has"),
    Code("CF105", "embedding-scale", "note", "the target scales its embeddings",
         "The input embeddings are multiplied by a constant, inside or outside the embedding module.",
         "A draft trained on raw rows sees other inputs than it was trained on: acceptance falls, never losslessness.",
         "check the draft's config for input_embedding_scale"),
    Code("CF106", "logit-transform", "note", "the logits are not the raw output of the head",
         "A soft-cap or scale stands between lm_head and the logits.",
         "A draft that calls the head directly ranks the same greedy token but other probabilities.",
         "check the draft's config for its soft-cap or output multiplier"),
    Code("CF107", "hidden-state-layout", "error", "hidden states are not laid out as the draft expects",
         "output_hidden_states=True gives another number of entries than layers + 1, or entries that are None.",
         "The draft would be fed the wrong layers without an exception.",
         "choose target_layer_ids for this layout"),
    # -- CF2xx cache and rollback
    Code("CF201", "bare-dynamic-cache", "error", "the target's cache is made without its config"),
    Code("CF202", "unverified-forward", "error", "the target is called directly, so nothing rolls back exactly"),
    Code("CF203", "absolute-crop", "error", "a cache is rolled back with crop"),
    Code("CF204", "rollback-is-not-exact", "error", "crop does not bring the cache back to what it was",
         "On a tiny model of this class: prefill, rejected tokens, crop, next step. The logits differ from a run that "
         "never saw the rejected tokens.",
         "Rejected tokens stay in the recurrent state, so the text is wrong from the first rejection on and accepted "
         "length collapses. Code that silences the library's exception as its message asks still has this fault.",
         "roll back through the runtime: compatfix patch"),
    Code("CF205", "multi-token-state-dropped", "error", "a multi-token forward ignores the recurrent state",
         "A block of tokens on a filled cache gives other logits than the same tokens one at a time.",
         "Verification of a block is wrong from its first token, without an exception.",
         "verify through the runtime: compatfix patch"),
    Code("CF206", "attention-only-compaction", "error", "the accepted path is kept in attention layers only"),
    Code("CF207", "short-window-storage", "warning", "sliding layers keep fewer tokens than a rollback needs",
         "A config-built cache stores only the window of a sliding layer.",
         "After a rejected block the keys that fell out of the window are gone: an exception, or wrong text.",
         "make the cache with the runtime's new_cache: compatfix patch"),
    # -- CF3xx tree verification
    Code("CF301", "tree-mask-ignored", "error", "the tree mask does not reach every layer",
         "Changing a token in a masked sibling branch moves the logits of another branch.",
         "Siblings contaminate one another through layers that take no mask; accepted length collapses silently.",
         "verify through the runtime: compatfix patch"),
    Code("CF302", "no-exact-strategy", "error", "no verification strategy agrees with plain decoding",
         "Every strategy of the runtime was tried on the tiny model and none met the noise rule.",
         "The runtime refuses to generate, rather than be wrong.",
         "report the model type with the measured numbers"),
    Code("CF303", "boolean-mask-under-eager", "error", "a boolean 4D mask hides nothing under eager attention",
         "Eager attention adds a 4D mask to the scores; true and false become 1 and 0.",
         "Every token sees every token, without an exception; under sdpa the same mask is right.",
         "pass additive masks in the model's dtype; the runtime does: compatfix patch"),
    Code("CF304", "one-mask-for-all-layers", "error", "one mask for all layers takes the windows off sliding layers",
         "A 4D mask is used by every attention layer as it is; sliding layers then have no window.",
         "Past the window the target computes other logits than plain decoding, without an exception.",
         "pass a dict of masks by layer type; the runtime does: compatfix patch"),
    # -- CF4xx draft pairing
    Code("CF401", "draft-hidden-size", "error", "target and draft differ in hidden size",
         "The draft's fc takes len(target_layer_ids) × hidden_size features of the target and shares its embeddings.",
         "A shape error at the first draft.",
         "use the draft that was trained for this target"),
    Code("CF402", "draft-vocabulary", "error", "target and draft differ in vocabulary",
         "The draft uses the target's embeddings and head.",
         "Token ids mean different things, or are out of range.",
         "use the draft that was trained for this target"),
    Code("CF403", "draft-layer-ids", "error", "the draft names layers that the target does not have",
         "target_layer_ids, with the offset of 1, must lie inside the target's hidden states.",
         "An IndexError, or the post-norm entry in the place of a layer's output.",
         "use the draft that was trained for this target"),
    Code("CF404", "draft-target-depth", "error", "the draft was made for a target of another depth",
         "num_target_layers of the draft differs from the target's number of layers.",
         "Layer ids then select other layers than those it was trained on: low acceptance, never an exception.",
         "use the draft that was trained for this target"),
    Code("CF405", "draft-layer-ids-offset", "warning", "the draft's layer ids look as if the offset was applied twice",
         "Every id is one more than what build_target_layer_ids gives for this depth.",
         "The draft sees the layer after the one it was trained on: about half the accepted length.",
         "compare with the draft's training code; the meaning of ids cannot be measured without weights"),
    Code("CF406", "draft-mask-token", "error", "the draft's mask token is missing or outside the vocabulary",
         "The noise block is made of mask tokens embedded with the target's embeddings.",
         "A fallback to pad or eos drafts from the wrong input; an id out of range is an index error.",
         "set mask_token_id in the draft's config to the value of its training"),
    Code("CF407", "draft-block-size", "warning", "block_size is not where the code reads it",
         "Drafts keep block_size at the top of the config or nested in dflash_config.",
         "An AttributeError, or a default that the draft was not trained for.",
         "pass --block-size, or move the field"),
    Code("CF408", "draft-sliding-windows", "warning", "the draft has sliding-window layers that get no mask"),
    Code("CF409", "not-a-draft", "error", "the draft directory does not hold a DFlash draft",
         "Its config lacks what a DFlash draft needs.",
         "Pairing cannot be judged.",
         "give the directory of a DFlash draft"),
    # -- CF5xx transformers API drift
    Code("CF501", "cache-update-kwargs", "warning", "Cache.update is called with a fourth positional argument"),
    Code("CF502", "renamed-cache-argument", "warning", "the cache argument has another name in this transformers",
         "`past_key_values=` became `cache=` (5.24) and is to be removed; `cache=` is swallowed before that.",
         "The cache stays empty without an exception, or the call stops working in a later version.",
         "call the target through the runtime, which passes the name it takes: compatfix patch"),
    # -- CF6xx devices, dtypes, memory
    Code("CF601", "cuda-synchronize", "error", "timing asks for CUDA by name"),
    Code("CF602", "flash-attention-by-name", "error", "FlashAttention is asked for by name"),
    Code("CF603", "single-device-buffers", "note", "buffers live on the draft's device",
         "Tokens, masks and positions are created on `model.device`.",
         "Right on one device. With draft and target apart, tensors meet on different devices.",
         "put draft and target on one device, or validate --on weights with your device map"),
    Code("CF610", "does-not-fit", "note", "the memory plan exceeds the devices present",
         "Weights, caches, states and hidden states are summed from the config for the given context.",
         "Loading or prefill ends in an out-of-memory error.",
         "shard over more devices, shorten the context, or quantise"),
    Code("CF611", "all-hidden-states", "note", "the hidden states of every layer are kept"),
    # -- CF7xx sampling and output
    Code("CF701", "mask-token-filter", "error", "emitted tokens that equal the mask token are dropped"),
    Code("CF702", "sampling-differs", "error", "sampled tokens do not have the target's distribution",
         "Every sampled token is held against its exact chances under the target, given the text before it.",
         "At temperature > 0 the text is another model's: no prompt shows it, benchmarks drift.",
         "see in the report where it happens: which tokens are drawn too often, and behind what"),
    # -- CF9xx validation
    Code("CF901", "not-lossless", "error", "the tree's output differs from plain greedy decoding",
         "Greedy tokens of the tree are compared with those of plain decoding of the same target.",
         "The tree produces other text than the model would: speed-ups of such code mean nothing.",
         "see the first difference in the report: prompt, token, candidates, margin, layer"),
    Code("CF902", "fault-not-caught", "error", "a planted fault stays invisible",
         "Faults are planted on this very model to show that the checks would see them.",
         "A check that cannot fail proves nothing, so the scope is undecided.",
         "use another seed, or report the model type"),
    Code("CF903", "not-exercised", "error", "a situation that matters did not occur",
         "Counters record full, partial and zero acceptance, stop tokens inside a path, and so on.",
         "What was not exercised is not passed.",
         "run with more prompts or another seed"),
    Code("CF904", "references-disagree", "error", "plain decoding disagrees with itself",
         "The tree's block-size-1 path, the library's generate and an uncached forward must give the same tokens.",
         "Without an agreed reference nothing can be compared with it.",
         "see which two differ in the report"),
    Code("CF905", "pending-fixes", "error", "the tree on disk has fixes pending",
         "The gate judges the tree as it is; rules would still change it.",
         "What would run is not what was patched.",
         "compatfix patch, or gate with --patch copy"),
    Code("CF906", "tree-does-not-import", "error", "the tree cannot be imported",
         "The worker imports the tree as its own scripts would.",
         "Nothing of it can run.",
         "see the exception in the report"),
    Code("CF907", "entry-point-not-found", "error", "no generation entry point was found",
         "Entry points are found by their signature: model, target, input_ids, max_new_tokens, ….",
         "There is nothing to validate.",
         "name the function with --entry module:function, and what its parameters mean with --argument NAME=ROLE"),
    Code("CF908", "unparsable-file", "error", "a Python file of the tree cannot be parsed",
         "The file has a syntax error, or its encoding cannot be decoded.",
         "It cannot be rewritten; the rest of the tree is done.",
         "mend the file"),
    Code("CF909", "bf16-corruption", "error", "bf16 output differs by more than rounding explains",
         "A differing token is rounding when its top-1/top-2 margin is within the noise measured in the same run.",
         "A larger margin means corrupted state, not rounding.",
         "see the margins in the report"),
    Code("CF910", "generation-raised", "error", "generation ended in an exception",
         "The tree raised while generating on the tiny model.",
         "It would raise on the real model too, after minutes of loading.",
         "see the exception and its place; compatfix explain CODE where a code is named"),
    Code("CF911", "runtime-refused", "error", "the runtime refused this target",
         "At start-up the runtime measures its strategies on the model in hand.",
         "None agreed with plain decoding, or a forced one did not.",
         "see the measured numbers in the report"),
    Code("CF912", "incomplete-checkpoint", "error", "the checkpoint does not load completely",
         "Keys are missing, surplus or of another shape for the class that loads it.",
         "Missing weights are random: the output is noise.",
         "use the checkpoint's own class, or complete the directory"),
    Code("CF913", "stubbed-import", "note", "a module that the tree imports is missing and was stubbed",
         "It is not needed for generation, so a stub stands in for it during validation.",
         "The real run needs it.",
         "pip install the module"),
    Code("CF914", "wrong-module-imported", "error", "a module of the tree came from somewhere else",
         "After import every module's file is compared with the tree's root.",
         "An installed package of the same name would be judged in the tree's place.",
         "rename the module, or uninstall the package in the environment under test"),
    Code("CF915", "edited-runtime-copy", "error", "the copied runtime was edited",
         "A file of compatfix_runtime/ in the tree is not what its own manifest says.",
         "What would run is not the runtime that was tested. It is left alone, since an upgrade would lose the edits.",
         "move the edits out of the copy, or compatfix patch --force-runtime"),
    Code("CF916", "draft-input-differs", "error", "the draft is given other input than plain decoding would give",
         "Context features and the draft's own cache are compared with those made from plain decoding.",
         "The text stays right, so nobody notices; the accepted length falls and the draft gets the blame.",
         "check the index of hidden states, the layer ids and the draft's rollback"),
    Code("CF917", "result-not-understood", "error", "the result of an entry point holds no output ids that fit",
         "Token ids of one text are looked for in the result: a tensor, a list, or a field with a published name.",
         "What was generated cannot be compared with anything.",
         "name the field: --result FIELD, or --result FIELD:new where it holds only the new tokens"),
    Code("CF990", "no-speed-up", "note", "speculation is no faster than plain decoding here",
         "Decode time per token is compared prompt by prompt, in interleaved runs, with a noise floor.",
         "A draft or tree that costs more than it saves.",
         "compare chain and tree budgets in the report"),
)  # fmt: skip

CODES: dict[str, Code] = {entry.code: entry for entry in _TABLE}


def lookup(name: str) -> Code | None:
    """Finds a code by its number (CF203, 203) or its name, in any case."""
    wanted = name.strip()
    for entry in _TABLE:
        if wanted.upper() in (entry.code, entry.code.removeprefix("CF")) or wanted.lower() == entry.name:
            return entry
    return None
