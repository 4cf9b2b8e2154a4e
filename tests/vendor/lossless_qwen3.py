"""Is vendor/ddtree_ref lossless on the target that it was written for? Prints JSON.

Runs in an environment of its own, with the transformers of that time and without compatfix:

    PYTHON_OF_THAT_ENVIRONMENT tests/vendor/lossless_qwen3.py

Target: a tiny random Qwen3. Draft: the real DFlashDraftModel does its real forward on its real
cache, then an oracle replaces its output by hidden states from which the target's own head reads
the true continuation among decoys.
"""

from __future__ import annotations

import importlib.util
import json
import math
import os
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from types import ModuleType, SimpleNamespace
from unittest import mock

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "vendor" / "ddtree_ref"))

import ddtree
import torch
import transformers
from ddtree import ddtree_generate
from dflash import dflash_generate
from model import DFlashDraftModel, extract_context_feature
from transformers import Qwen3Config, Qwen3ForCausalLM

VOCAB = 131
HIDDEN = 144  # at least VOCAB: then any logits can be asked of the target's head
BLOCK = 8
BUDGETS = (1, 16, 32, 64)
NEW_TOKENS = 40
MASK = VOCAB - 1
SEEDS = (0, 1, 2)
PROMPT_LENGTHS = (1, 5, 17)


def main() -> None:
    torch.set_num_threads(1)
    if not torch.cuda.is_available():
        torch.cuda.synchronize = lambda *_, **__: None
    cases = [Case(seed, length) for seed in SEEDS for length in PROMPT_LENGTHS]
    report = {
        "transformers": transformers.__version__,
        "compatfix_imported": "compatfix" in sys.modules,
        "baselines": [case.baselines_agree() for case in cases],
        "chain": compare(cases, lambda case, draft: run_chain(case, draft)),
        "trees": {budget: compare(cases, lambda case, draft, b=budget: run_tree(case, draft, b)) for budget in BUDGETS},
        "eager": [eager_attention_is_lossless(case) for case in cases[::4]],
        "faults": {name: fault_is_caught(cases[:3], *plant) for name, plant in FAULTS.items()},
        "random_draft": [random_draft_is_lossless(case) for case in cases[::4]],
        "own_loop": [own_loop_is_lossless(case) for case in cases[::4]],
        "stops": [result for case in cases[:3] for result in stop_inside_a_path(case)],
        "limits": [result for case in cases[:3] for result in limit_inside_a_path(case)],
        "mask_token": [emitting_the_mask_token(case) for case in cases[:3]],
        "benchmark": benchmark_runs(cases[0]),
    }
    print(json.dumps(report))


class Case:
    """One target, one prompt, and the text that plain decoding makes of it."""

    def __init__(self, seed: int, prompt_length: int) -> None:
        self.seed = seed
        self.target = tiny_target(seed)
        # a prompt never holds the mask token: the published output filter would drop it
        generator = torch.Generator().manual_seed(1000 * seed + prompt_length)
        self.prompt = torch.randint(0, MASK, (1, prompt_length), generator=generator)
        self.truth = uncached_greedy(self.target, self.prompt, NEW_TOKENS + 2 * BLOCK)
        self.expected = self.truth[: prompt_length + NEW_TOKENS]

    def baselines_agree(self) -> bool:
        """Block size 1 and the library's generate give the text of an uncached forward."""
        plain = run_chain(self, self.draft(), block_size=1)
        library = self.target.generate(
            self.prompt,
            attention_mask=torch.ones_like(self.prompt),
            do_sample=False,
            max_new_tokens=NEW_TOKENS,
        )
        only_ones = set(plain.acceptance_lengths) == {1}
        return only_ones and tokens_of(plain) == library[0].tolist() == self.expected

    def draft(self, mask_token_id: int = MASK) -> OracleDraft:
        seed = 100 * self.seed + self.prompt.shape[1]
        return OracleDraft(tiny_draft_config(mask_token_id), self.target, self.truth, seed)


def tiny_target(seed: int) -> Qwen3ForCausalLM:
    config = Qwen3Config(
        vocab_size=VOCAB,
        hidden_size=HIDDEN,
        intermediate_size=96,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=512,
        tie_word_embeddings=False,
        attn_implementation="sdpa",
    )
    target = Qwen3ForCausalLM(config).eval()
    enlarge_weights(target, seed)
    target.generation_config.eos_token_id = None
    target.generation_config.pad_token_id = 0
    # token MASK is never emitted: its logit is next to nothing, and some other one is large
    with torch.no_grad():
        target.lm_head.weight[MASK].mul_(1e-3)
    return target


def tiny_draft_config(mask_token_id: int) -> Qwen3Config:
    return Qwen3Config(
        vocab_size=VOCAB,
        hidden_size=HIDDEN,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=512,
        block_size=BLOCK,
        num_target_layers=4,
        dflash_config={"mask_token_id": mask_token_id, "target_layer_ids": [0, 2]},
        attn_implementation="sdpa",
    )


def enlarge_weights(model: torch.nn.Module, seed: int) -> None:
    """Draws weights large enough that the text depends on the whole past and does not loop."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim < 2:
                continue
            scale = 1.0 if "embed_tokens" in name else 1.3 / math.sqrt(parameter.shape[-1])
            if "lm_head" in name:
                scale *= 3.0
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * scale)


@torch.inference_mode()
def uncached_greedy(target: Qwen3ForCausalLM, prompt: torch.Tensor, num_tokens: int) -> list[int]:
    ids = prompt
    for _ in range(num_tokens):
        logits = target(ids, use_cache=False).logits[:, -1:]
        ids = torch.cat([ids, logits.argmax(-1)], dim=1)
    return ids[0].tolist()


# The draft's mood changes from round to round: the chance that the truth ranks first, second, ...
MOODS: dict[str, tuple[float, ...]] = {
    "faithful": (0.95, 0.03, 0.02),
    "tempting": (0.5, 0.35, 0.1),  # decoys often rank before it, so that only a tree finds it
    "lost": (0.0,),  # no truth at all: everything is rejected
}


class OracleDraft(DFlashDraftModel):
    """The real draft, whose answer is overruled after the fact."""

    def __init__(self, config, target, truth: list[int], seed: int) -> None:
        super().__init__(config)
        enlarge_weights(self, seed + 77)
        self.eval()
        self.truth = truth
        self.random = random.Random(seed)
        self.head_inverse = torch.linalg.pinv(target.lm_head.weight.detach().double())
        self.seen_context: list[torch.Tensor] = []
        self.worst_cache_error = 0.0

    def forward(self, position_ids, noise_embedding, target_hidden, past_key_values, **kwargs):
        assert past_key_values.get_seq_length() == int(position_ids[0, 0])
        real = super().forward(
            position_ids=position_ids,
            noise_embedding=noise_embedding,
            target_hidden=target_hidden,
            past_key_values=past_key_values,
            **kwargs,
        )
        end = int(position_ids[0, -1]) + 1
        assert past_key_values.get_seq_length() == end
        self.compare_with_no_cache(real, noise_embedding, target_hidden, end)
        return self.overrule(real, end - noise_embedding.shape[1])

    def compare_with_no_cache(self, real, noise_embedding, target_hidden, end: int) -> None:
        """The cached forward must equal one over all the context at once."""
        self.seen_context.append(target_hidden)
        fresh = super().forward(
            position_ids=torch.arange(end)[None],
            noise_embedding=noise_embedding,
            target_hidden=torch.cat(self.seen_context, dim=1),
            is_causal=False,
        )
        error = float((fresh - real).abs().max())
        self.worst_cache_error = max(self.worst_cache_error, error)

    def overrule(self, real: torch.Tensor, start: int) -> torch.Tensor:
        mood = self.random.choices(list(MOODS), weights=(5, 3, 1))[0]
        answer = real.clone()
        for offset in range(1, real.shape[1]):
            ranking = self.ranking(start + offset, MOODS[mood])
            logits = torch.zeros(VOCAB, dtype=torch.double)
            for rank, token in enumerate(ranking):
                logits[token] = 8.0 - 1.2 * rank
            answer[0, offset] = (self.head_inverse @ logits).to(real)
        return answer

    def ranking(self, position: int, chances: tuple[float, ...]) -> list[int]:
        """Three decoys, and the truth in front of one of them with the chance of that rank."""
        true_token = self.truth[position] if position < len(self.truth) else 0
        others = [token for token in range(VOCAB - 1) if token != true_token]
        ranking = self.random.sample(others, 3)
        draw = self.random.random()
        for rank, chance in enumerate(chances):
            if draw < chance:
                ranking.insert(rank, true_token)
                break
            draw -= chance
        return ranking


def run_chain(case: Case, draft: OracleDraft, **changes):
    options = {
        "mask_token_id": draft.mask_token_id,
        "max_new_tokens": NEW_TOKENS,
        "block_size": BLOCK,
        "stop_token_ids": None,
    }
    return dflash_generate(draft, case.target, case.prompt, **{**options, **changes})


def run_tree(case: Case, draft: OracleDraft, budget: int, **changes):
    options = {
        "mask_token_id": draft.mask_token_id,
        "max_new_tokens": NEW_TOKENS,
        "block_size": BLOCK,
        "stop_token_ids": None,
        "tree_budget": budget,
        "save_tree_traces": True,
    }
    return ddtree_generate(draft, case.target, case.prompt, **{**options, **changes})


def compare(cases: list[Case], run) -> dict:
    """Runs the oracle on every case, and says what was right and what was exercised."""
    lossless, lengths, errors, context_errors, branchy = [], [], [], [], 0
    for case in cases:
        draft = case.draft()
        result = run(case, draft)
        lossless.append(tokens_of(result) == case.expected)
        lengths += result.acceptance_lengths
        errors.append(draft.worst_cache_error)
        context_errors.append(context_error(case, draft))
        branchy += sum(left_the_first_branch(tree) for tree in result.round_trees or [])
    return {
        "lossless": lossless,
        "mean_accepted": fmean(lengths),
        "lengths": dict(Counter(lengths)),
        "rounds_off_the_first_branch": branchy,
        "draft_cache_error": max(errors),
        "context_error": max(context_errors),
    }


@torch.inference_mode()
def context_error(case: Case, draft: OracleDraft) -> float:
    """How far the features that the draft was given are from those of one plain forward."""
    given = torch.cat(draft.seen_context, dim=1)
    text = torch.tensor([case.truth[: given.shape[1]]])
    hidden_states = case.target(text, use_cache=False, output_hidden_states=True).hidden_states
    plain = extract_context_feature(hidden_states, draft.target_layer_ids)
    return float((given - plain).abs().max())


def left_the_first_branch(tree: dict) -> bool:
    """Whether the path accepted holds a node that is not the likeliest child of its parent."""
    first_children: dict[int, int] = {}
    for node, parent in enumerate(tree["parents"]):
        first_children.setdefault(parent, node)
    path = tree["accepted_indices"]
    return any(first_children[a] != b for a, b in pairwise(path))


def random_draft_is_lossless(case: Case) -> bool:
    """An untrained draft: hardly anything is accepted, and the text is the same."""
    draft = DFlashDraftModel(tiny_draft_config(MASK))
    enlarge_weights(draft, case.seed + 5)
    draft.eval()
    chain, tree = run_chain(case, draft), run_tree(case, draft, 32)
    return tokens_of(chain) == tokens_of(tree) == case.expected


def own_loop_is_lossless(case: Case) -> bool:
    """The draft model's own generation loop."""
    output_ids = case.draft().spec_generate(case.target, case.prompt, NEW_TOKENS, None)
    return output_ids[0].tolist() == case.expected


def eager_attention_is_lossless(case: Case) -> bool:
    """Target and draft under eager attention."""
    draft = case.draft()
    draft.set_attn_implementation("eager")
    case.target.set_attn_implementation("eager")
    try:
        return tokens_of(run_tree(case, draft, 32)) == case.expected
    finally:
        case.target.set_attn_implementation("sdpa")


def stop_inside_a_path(case: Case) -> list[dict]:
    """Stops at a token in the middle of an accepted path; the text ends with it."""
    start = case.prompt.shape[1]
    never_emitted = next(token for token in range(VOCAB) if token not in case.expected[start:])
    results = []
    for name, run in every_loop(case):
        whole = run(case.draft())
        position = next(
            position
            for position in positions_inside_paths(case, whole)
            if case.expected[position] not in case.expected[start:position]
        )
        stopped = run(case.draft(), stop_token_ids=[never_emitted, case.expected[position]])
        results.append(
            {
                "loop": name,
                "right": tokens_of(stopped) == case.expected[: position + 1],
                "inside_a_path": sum(stopped.acceptance_lengths) + 1 > stopped.num_output_tokens,
                "rounds_saved": whole.decode_rounds - stopped.decode_rounds,
            }
        )
    return results


def limit_inside_a_path(case: Case) -> list[dict]:
    """Limits the length to every number of tokens around the middle of an accepted path."""
    start = case.prompt.shape[1]
    results = []
    for name, run in every_loop(case):
        position = next(positions_inside_paths(case, run(case.draft())))
        new_tokens = position + 1 - start
        for limit in (1, new_tokens - 1, new_tokens, new_tokens + 1):
            limited = run(case.draft(), max_new_tokens=limit)
            right = tokens_of(limited) == case.expected[: start + limit]
            cut = sum(limited.acceptance_lengths) + 1 > limit
            results.append({"loop": name, "right": right, "inside_a_path": cut})
    return results


def every_loop(case: Case) -> list:
    return [
        ("chain", lambda draft, **changes: run_chain(case, draft, **changes)),
        ("tree", lambda draft, **changes: run_tree(case, draft, 32, **changes)),
    ]


def positions_inside_paths(case: Case, result) -> Iterator[int]:
    """Positions of tokens that were drafted, accepted, and followed by another accepted one."""
    start = case.prompt.shape[1]
    for length in result.acceptance_lengths:
        yield from range(start + 2, min(start + length - 1, len(case.expected) - 1))
        start += length


def fault_is_caught(cases: list[Case], module, name: str, broken) -> bool:
    """Whether a fault planted in one function of the tree shows in the text of any case."""
    sound = getattr(module, name)
    setattr(module, name, broken(sound))
    try:
        return any(tokens_of(run_tree(case, case.draft(), 32)) != case.expected for case in cases)
    finally:
        setattr(module, name, sound)


def siblings_visible(build):
    """Every node sees all nodes before it."""

    def broken(*args):
        *front, visibility, times = build(*args)
        return (*front, torch.ones_like(visibility).tril(), times)

    return broken


def positions_by_index(build):
    """Positions follow the order of the nodes, not their depth."""

    def broken(*args):
        tokens, depths, *rest = build(*args)
        return (tokens, torch.arange(1, len(depths) + 1), *rest)

    return broken


def stale_mask(compile_tree):
    """The columns of the tree before stay masked."""

    def broken(*args):
        return compile_tree(*args[:-2], 0, 0)

    return broken


def first_tokens_kept(compact):
    """As many tokens as were accepted are kept, but the first ones and not those accepted."""

    def broken(cache, past_length, keep):
        compact(cache, past_length, torch.arange(len(keep)))

    return broken


def last_key_lost(compact):
    """The key of the last accepted token is zeroed."""

    def broken(cache, past_length, keep):
        compact(cache, past_length, keep)
        for layer in cache.layers:
            layer.keys[..., -1, :] = 0

    return broken


FAULTS = {
    "siblings visible": (ddtree, "build_ddtree_tree", siblings_visible),
    "positions by index": (ddtree, "build_ddtree_tree", positions_by_index),
    "stale mask": (ddtree, "compile_ddtree_tree", stale_mask),
    "first tokens kept": (ddtree, "compact_dynamic_cache", first_tokens_kept),
    "last key lost": (ddtree, "compact_dynamic_cache", last_key_lost),
}


def emitting_the_mask_token(case: Case) -> dict:
    """The published fault: a token that equals the mask token is missing from the output."""
    new_text = case.expected[case.prompt.shape[1] :]
    mask = next(token for token in new_text if token not in case.prompt)
    without = [token for token in case.expected if token != mask]
    chain = run_chain(case, case.draft(mask))
    tree = run_tree(case, case.draft(mask), 32)
    own = case.draft(mask).spec_generate(case.target, case.prompt, NEW_TOKENS, None)
    outputs = [tokens_of(chain), tokens_of(tree), own[0].tolist()]
    return {
        "lossless": any(output == case.expected for output in outputs),
        "only_the_mask_token_is_missing": all(output == without for output in outputs),
    }


def benchmark_runs(case: Case) -> dict:
    """What the benchmark script saves; its models are replaced, its extra imports if missing."""
    for name, member in (("loguru", "logger"), ("datasets", "load_dataset")):
        if importlib.util.find_spec(name) is None:
            sys.modules[name] = ModuleType(name)
            setattr(sys.modules[name], member, mock.Mock())
    tokenizer = SimpleNamespace(
        chat_template=None,
        eos_token_id=None,
        encode=lambda text, return_tensors: torch.tensor([[ord(c) % MASK for c in text[:9]]]),
    )
    draft = DFlashDraftModel(tiny_draft_config(MASK)).eval()
    enlarge_weights(draft, case.seed)
    with tempfile.TemporaryDirectory() as folder:
        import benchmark

        save_path = Path(folder) / "deeper" / "numbers.json"
        options = "--model-name-or-path a --draft-name-or-path b --tree-budget 8,16"
        options += " --max-new-tokens 12 --num-prompts 2"
        with mock.patch.object(benchmark, "load_models", lambda args: (case.target, draft, tokenizer)):
            benchmark.main([*options.split(), "--save-path", str(save_path)])
        return json.loads(save_path.read_text())["results"]


def tokens_of(result) -> list[int]:
    return result.output_ids[0].tolist()


if __name__ == "__main__":
    main()
