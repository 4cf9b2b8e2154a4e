"""The parts of the reference implementation that need no target, in any environment."""

from __future__ import annotations

import heapq
import itertools
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import Qwen3Config

from compatfix.validate.transfers import counted_transfers

REFERENCE = Path(__file__).resolve().parents[2] / "vendor" / "ddtree_ref"

# ---- building the tree


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("depth", "vocab", "budget"), [(3, 4, 12), (1, 7, 5), (4, 3, 40), (3, 6, 2), (2, 3, 12)])
def test_the_tree_holds_the_likeliest_paths(reference, seed, depth, vocab, budget):
    logits = random_logits(depth, vocab, seed)
    tokens, depths, parents, *_ = reference.ddtree.build_ddtree_tree(logits, budget)
    built = [path_to(node, tokens, parents) for node in range(1, len(parents))]
    assert built == likeliest_paths(logits, budget)
    assert [len(path) for path in built] == depths.tolist()


def likeliest_paths(logits, budget):
    """Every path of every length, the likeliest first."""
    log_probs = torch.log_softmax(logits.double(), dim=-1).tolist()
    depth, vocab = logits.shape
    paths = itertools.chain.from_iterable(
        itertools.product(range(vocab), repeat=length) for length in range(1, depth + 1)
    )
    ranked = sorted(paths, key=lambda path: -sum(log_probs[i][t] for i, t in enumerate(path)))
    return ranked[:budget]


def path_to(node, tokens, parents):
    path = []
    while node > 0:
        path.append(int(tokens[node - 1]))
        node = parents[node]
    return tuple(reversed(path))


@pytest.mark.parametrize("budget", [1, 5, 24])
def test_a_node_sees_itself_and_its_ancestors_only(reference, budget):
    _, _, parents, _, visibility, _ = reference.ddtree.build_ddtree_tree(random_logits(5, 9), budget)
    assert visibility.shape == (budget + 1, budget + 1)
    for node in range(budget + 1):
        ancestors = set()
        current = node
        while current >= 0:
            ancestors.add(current)
            current = parents[current]
        assert set(visibility[node].nonzero().flatten().tolist()) == ancestors


def test_child_maps_and_parents_say_the_same(reference):
    tokens, _, parents, child_maps, _, _ = reference.ddtree.build_ddtree_tree(random_logits(4, 6), 20)
    edges = {(parent, int(tokens[node - 1]), node) for node, parent in enumerate(parents) if node}
    from_maps = {
        (parent, token, node) for parent, children in enumerate(child_maps) for token, node in children.items()
    }
    assert from_maps == edges
    assert len(edges) == 20


def test_a_budget_of_none_leaves_the_root(reference):
    tokens, depths, parents, child_maps, visibility, _ = reference.ddtree.build_ddtree_tree(random_logits(3, 5), 0)
    assert tokens.tolist() == depths.tolist() == []
    assert parents == [-1]
    assert child_maps == [{}]
    assert visibility.tolist() == [[True]]


def test_a_budget_of_one_takes_the_likeliest_token(reference):
    logits = random_logits(3, 5)
    tokens, depths, parents, child_maps, visibility, _ = reference.ddtree.build_ddtree_tree(logits, 1)
    best = int(logits[0].argmax())
    assert tokens.tolist() == [best]
    assert depths.tolist() == [1]
    assert parents == [-1, 0]
    assert child_maps == [{best: 1}, {}]
    assert visibility.tolist() == [[True, False], [True, True]]


def test_a_budget_beyond_all_paths_ends_with_the_paths(reference):
    tokens, *_ = reference.ddtree.build_ddtree_tree(random_logits(2, 3), 100)
    assert len(tokens) == 3 + 9


def test_equal_likelihoods_and_impossible_tokens_make_a_tree(reference):
    logits = torch.full((3, 4), -torch.inf)
    logits[:, :2] = 0.0
    tokens, _, parents, *_ = reference.ddtree.build_ddtree_tree(logits, 14)
    paths = {path_to(node, tokens, parents) for node in range(1, 15)}
    assert len(paths) == 14
    assert all(set(path) <= {0, 1} for path in paths)


def by_heap(logits, budget):
    """The same tree one path at a time: (likelihood, tokens) in the order in which a heap gives them up."""
    log_probs, token_ids = torch.log_softmax(logits.float(), dim=-1).topk(min(budget, logits.shape[1]), dim=-1)
    log_probs, token_ids = log_probs.tolist(), token_ids.tolist()
    heap, found = [(-log_probs[0][0], 0, (0,), 0.0)], []
    while heap and len(found) < budget:
        negative, _, ranks, before = heapq.heappop(heap)
        found.append((-negative, tuple(token_ids[depth][rank] for depth, rank in enumerate(ranks))))
        depth, rank = len(ranks) - 1, ranks[-1]
        if rank + 1 < len(log_probs[0]):
            sibling = before + log_probs[depth][rank + 1]
            heapq.heappush(heap, (-sibling, len(found), (*ranks[:-1], rank + 1), before))
        if depth + 1 < len(log_probs):
            heapq.heappush(heap, (negative - log_probs[depth + 1][0], len(found), (*ranks, 0), -negative))
    return found


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    seed=st.integers(0, 10**6),
    depth=st.integers(1, 9),
    vocab=st.integers(1, 40),
    budget=st.integers(1, 90),
    sharpness=st.sampled_from([0.1, 1.0, 4.0, 20.0]),
)
def test_the_tree_is_the_one_that_a_heap_builds(reference, seed, depth, vocab, budget, sharpness):
    logits = random_logits(depth, vocab, seed) * sharpness
    expected = by_heap(logits, budget)
    tokens, depths, parents, child_maps, *_ = reference.ddtree.build_ddtree_tree(logits, budget)
    built = [path_to(node, tokens, parents) for node in range(1, len(parents))]
    if len({likelihood for likelihood, _ in expected}) == len(expected):
        assert built == [path for _, path in expected]
    assert [len(path) for path in built] == depths.tolist()
    assert [len(children) for children in child_maps] == [parents.count(node) for node in range(len(parents))]


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=st.lists(st.lists(st.sampled_from([0.0, 1.0, 2.0]), min_size=5, max_size=5), min_size=1, max_size=5))
def test_among_equal_paths_any_may_be_taken_and_parents_come_first(reference, rows):
    logits, budget = torch.tensor(rows), 20
    log_probs = torch.log_softmax(logits, dim=-1).tolist()
    tokens, _, parents, *_ = reference.ddtree.build_ddtree_tree(logits, budget)
    built = [path_to(node, tokens, parents) for node in range(1, len(parents))]
    expected = by_heap(logits, budget)
    likelihoods = [sum(log_probs[depth][token] for depth, token in enumerate(path)) for path in built]
    assert likelihoods == pytest.approx([likelihood for likelihood, _ in expected], abs=1e-6)
    assert len(set(built)) == len(built) == len(expected)
    assert all(parent < node for node, parent in enumerate(parents))


@pytest.mark.parametrize("budget", [16, 64, 256])
def test_the_host_looks_at_a_round_twice_whatever_the_budget(reference, budget):
    """Once at the draft's distributions, once at the target's tokens."""
    logits, cache = random_logits(7, 300), SimpleNamespace(layers=[SimpleNamespace(keys=states(2), values=states(3))])
    ids, positions = torch.empty(1, 257, dtype=torch.long), torch.empty(1, 257, dtype=torch.long)
    root, mask, posterior = torch.tensor([3]), torch.zeros(1, 1, 257, 300), torch.zeros(1, 257, dtype=torch.long)
    with counted_transfers() as found:
        tokens, depths, _, child_maps, visibility, _ = reference.ddtree.build_ddtree_tree(logits, budget)
        reference.ddtree.compile_ddtree_tree(root, 9, tokens, depths, visibility, ids, positions, mask, 0, 0)
        accepted, _ = reference.ddtree.follow_verified_tree(child_maps, posterior)
        reference.ddtree.compact_dynamic_cache(cache, 3, torch.arange(len(accepted)))
    assert sum(found.reads.values()) == 2


def test_time_is_told_by_step(reference):
    *_, times = reference.ddtree.build_ddtree_tree(random_logits(2, 3), 4)
    assert tuple(times) == reference.ddtree.DDTREE_BUILD_STAGE_ORDER
    assert all(seconds >= 0 for seconds in times.values())


# ---- compiling it


def test_two_trees_in_turn_share_the_buffers(reference):
    """The second tree begins inside the first: nothing of the first may stay masked."""
    ids, positions = torch.empty(1, 9, dtype=torch.long), torch.empty(1, 9, dtype=torch.long)
    mask = torch.zeros(1, 1, 9, 40)
    previous = (0, 0)
    for root, past_length, budget, seed in [(7, 10, 8, 0), (3, 12, 5, 1), (4, 13, 8, 2)]:
        tokens, depths, parents, _, visibility, _ = reference.ddtree.build_ddtree_tree(
            random_logits(4, 6, seed), budget
        )
        *inputs, start, length = reference.ddtree.compile_ddtree_tree(
            torch.tensor([root]),
            past_length,
            tokens,
            depths,
            visibility,
            ids,
            positions,
            mask,
            *previous,
        )
        previous = (start, length)
        input_ids, position_ids, attention_mask = inputs

        assert previous == (past_length, budget + 1)
        assert input_ids.tolist() == [[root, *tokens.tolist()]]
        assert position_ids.tolist() == [[past_length, *(past_length + depths).tolist()]]
        assert attention_mask.shape == (1, 1, budget + 1, past_length + budget + 1)
        lowest = torch.finfo(torch.float32).min
        for node, row in enumerate(attention_mask[0, 0]):
            assert row[:past_length].tolist() == [0.0] * past_length
            for other, value in enumerate(row[past_length:].tolist()):
                assert value == (0.0 if is_ancestor(other, node, parents) else lowest)


def is_ancestor(other, node, parents):
    while node > other:
        node = parents[node]
    return node == other


# ---- walking it


@pytest.mark.parametrize(
    ("posterior", "accepted", "next_token"),
    [
        ([9, 0, 0, 0], [0], 9),
        ([5, 8, 0, 0], [0, 1], 8),
        ([6, 5, 5, 0], [0, 2], 5),
        ([6, 0, 7, 4], [0, 2, 3], 4),
    ],
    ids=["nothing", "first child", "sibling", "to a leaf"],
)
def test_the_walk_follows_the_target(reference, posterior, accepted, next_token):
    child_maps = [{5: 1, 6: 2}, {}, {7: 3}, {}]
    walk = reference.ddtree.follow_verified_tree(child_maps, torch.tensor([posterior]))
    assert walk == (accepted, next_token)


# ---- compacting the cache


@pytest.mark.parametrize("keep", [[0], [0, 1], [0, 2, 3], [0, 1, 2, 3]], ids=str)
@pytest.mark.parametrize("as_tensor", [False, True], ids=["list", "tensor"])
def test_layers_keep_the_past_and_the_path(reference, keep, as_tensor):
    layers = [SimpleNamespace(keys=states(2), values=states(3)) for _ in range(2)]
    recurrent = SimpleNamespace(state="untouched")
    empty = SimpleNamespace(keys=None, values=None)
    cache = SimpleNamespace(layers=[layers[0], recurrent, empty, layers[1]])

    reference.ddtree.compact_dynamic_cache(cache, 3, torch.tensor(keep) if as_tensor else keep)

    wanted = [0, 1, 2, *(3 + index for index in keep)]
    for layer in layers:
        assert torch.equal(layer.keys, states(2)[..., wanted, :])
        assert torch.equal(layer.values, states(3)[..., wanted, :])
    assert vars(recurrent) == {"state": "untouched"}
    assert vars(empty) == {"keys": None, "values": None}


def test_old_caches_are_compacted_through_their_lists(reference):
    cache = SimpleNamespace(key_cache=[states(0), states(1)], value_cache=[states(2), states(3)])
    reference.ddtree.compact_dynamic_cache(cache, 5, [1])
    wanted = [0, 1, 2, 3, 4, 6]
    for offset, kept in enumerate(cache.key_cache + cache.value_cache):
        assert torch.equal(kept, states(offset)[..., wanted, :])


def states(offset: int) -> torch.Tensor:
    """(1, 2, 7, 3), all entries different."""
    return torch.arange(42.0).view(1, 2, 7, 3) + 100 * offset


# ---- layer ids, features, tokens


@pytest.mark.parametrize(
    ("num_target_layers", "num_draft_layers", "layer_ids"),
    [
        (36, 5, [1, 9, 17, 25, 33]),
        (64, 5, [1, 16, 31, 46, 61]),
        (36, 1, [18]),
        (8, 2, [1, 5]),
        (28, 3, [1, 13, 25]),
    ],
)
def test_layer_ids_spread_evenly(reference, num_target_layers, num_draft_layers, layer_ids):
    built = reference.model.build_target_layer_ids(num_target_layers, num_draft_layers)
    assert built == layer_ids


def test_features_are_layer_outputs_and_not_the_embedding(reference):
    hidden_states = tuple(torch.full((1, 3, 2), float(entry)) for entry in range(5))
    features = reference.model.extract_context_feature(hidden_states, [0, 3])
    assert features.tolist() == [[[1.0, 1.0, 4.0, 4.0]] * 3]


def test_sampling_at_zero_takes_the_likeliest(reference):
    logits = torch.tensor([[[0.0, 2.0, 1.0], [5.0, 0.0, 0.0]]])
    assert reference.model.sample(logits, 0.0).tolist() == [[1, 0]]


def test_sampling_follows_the_distribution_at_its_temperature(reference):
    torch.manual_seed(0)
    logits = torch.tensor([1.0, 0.0, -1.0])
    drawn = reference.model.sample(logits.expand(1, 20000, 3), 2.0)
    shares = torch.bincount(drawn.flatten(), minlength=3) / 20000
    assert torch.allclose(shares, torch.tensor([0.5065, 0.3072, 0.1863]), atol=0.015)


@pytest.mark.parametrize(
    ("stops", "kept"),
    [
        (None, [4, 5, 6, 7, 8]),
        ([], [4, 5, 6, 7, 8]),
        ([9], [4, 5, 6, 7, 8]),
        ([7], [4, 5, 6, 7]),
        ([8, 6], [4, 5, 6]),
        ([5], [4, 5, 6, 7, 8]),
    ],
    ids=["none", "empty", "absent", "inside", "first of two", "in the prompt only"],
)
def test_text_ends_with_the_first_stop_token(reference, stops, kept):
    output_ids = torch.tensor([[4, 5, 6, 7, 8]])
    assert reference.model.cut_after_stop(output_ids, 2, stops).tolist() == [kept]


# ---- the draft model


def draft_config(**changes) -> Qwen3Config:
    options = {
        "vocab_size": 50,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "block_size": 4,
        "num_target_layers": 12,
        "dflash_config": {"mask_token_id": 49, "target_layer_ids": [1, 4, 7]},
        "attn_implementation": "sdpa",
    }
    return Qwen3Config(**{**options, **changes})


def draft_inputs(context: int = 6) -> dict:
    generator = torch.Generator().manual_seed(0)
    return {
        "position_ids": torch.arange(context + 4)[None],
        "noise_embedding": torch.randn(1, 4, 32, generator=generator),
        "target_hidden": torch.randn(1, context, 96, generator=generator),
    }


def test_the_draft_reads_its_config(reference):
    draft = reference.model.DFlashDraftModel(draft_config())
    assert (draft.block_size, draft.mask_token_id) == (4, 49)
    assert draft.target_layer_ids == [1, 4, 7]


def test_layer_ids_left_out_are_built(reference):
    draft = reference.model.DFlashDraftModel(draft_config(dflash_config={"mask_token_id": 49}))
    assert draft.target_layer_ids == [1, 9]


@torch.no_grad()
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_the_draft_comes_back_from_its_directory(reference, tmp_path, attention):
    draft = reference.model.DFlashDraftModel(draft_config()).eval()
    draft.save_pretrained(tmp_path)
    loaded = reference.model.DFlashDraftModel.from_pretrained(tmp_path, attn_implementation=attention).eval()
    expected, got = draft(**draft_inputs()), loaded(**draft_inputs())
    assert expected.shape == (1, 4, 32)
    assert torch.allclose(expected, got, atol=1e-5)


@torch.no_grad()
def test_the_draft_looks_both_ways_inside_the_block(reference):
    draft = reference.model.DFlashDraftModel(draft_config()).eval()
    inputs = draft_inputs()
    before = draft(**inputs)
    inputs["noise_embedding"][0, -1] += 1.0
    assert not torch.allclose(before[0, 0], draft(**inputs)[0, 0])


@torch.no_grad()
def test_sliding_layers_of_the_draft_get_no_mask(reference):
    """A published fault, kept: under sdpa the window changes nothing."""
    full = reference.model.DFlashDraftModel(draft_config()).eval()
    sliding = reference.model.DFlashDraftModel(
        draft_config(use_sliding_window=True, sliding_window=2, layer_types=["sliding_attention"] * 2)
    ).eval()
    sliding.load_state_dict(full.state_dict())
    assert sliding.layers[0].self_attn.sliding_window == 2
    assert torch.allclose(full(**draft_inputs()), sliding(**draft_inputs()), atol=1e-6)


def test_weights_have_the_published_names(reference):
    names = set(reference.model.DFlashDraftModel(draft_config(num_hidden_layers=1)).state_dict())
    projections = {f"layers.0.self_attn.{name}_proj.weight" for name in "qkvo"}
    norms = {f"layers.0.self_attn.{name}_norm.weight" for name in "qk"}
    mlp = {f"layers.0.mlp.{name}_proj.weight" for name in ("gate", "up", "down")}
    layer_norms = {
        "layers.0.input_layernorm.weight",
        "layers.0.post_attention_layernorm.weight",
    }
    top = {"fc.weight", "hidden_norm.weight", "norm.weight"}
    assert names == projections | norms | mlp | layer_norms | top


# ---- the benchmark script


def test_help_names_the_options(reference, capsys):
    with pytest.raises(SystemExit) as end:
        reference.benchmark.parse_args(["--help"])
    assert end.value.code == 0
    text = capsys.readouterr().out
    for option in (
        "--model-name-or-path",
        "--draft-name-or-path",
        "--block-size",
        "--tree-budget",
        "--max-new-tokens",
        "--temperature",
        "--flash-attn",
        "--save-path",
    ):
        assert option in text


MODELS = ["--model-name-or-path", "a", "--draft-name-or-path", "b"]


def test_budgets_are_a_list(reference):
    args = reference.benchmark.parse_args([*MODELS, "--tree-budget", "16, 32,64"])
    assert args.tree_budget == [16, 32, 64]


@pytest.mark.parametrize("budgets", ["", "0", "8,-1", "many"])
def test_budgets_that_make_no_sense_are_refused(reference, budgets, capsys):
    with pytest.raises(SystemExit):
        reference.benchmark.parse_args([*MODELS, "--tree-budget", budgets])
    assert "--tree-budget" in capsys.readouterr().err


def test_prompts_come_from_a_file_or_from_the_script(reference, tmp_path):
    file = tmp_path / "prompts.txt"
    file.write_text("one\n\ntwo\nthree\n", encoding="utf-8")
    parse, load = reference.benchmark.parse_args, reference.benchmark.load_prompts
    from_file = parse([*MODELS, "--prompt-file", str(file), "--num-prompts", "2"])
    assert load(from_file) == ["one", "two"]
    assert len(load(parse(MODELS))) == len(reference.benchmark.BUILTIN_PROMPTS)


@pytest.mark.parametrize(("flag", "target_attention"), [([], "sdpa"), (["--flash-attn"], "flash_attention_2")])
def test_the_draft_always_asks_for_flash_attention(reference, flag, target_attention):
    module = reference.benchmark
    asked = {}

    def recorder(name):
        def from_pretrained(path, attn_implementation=None, **_):
            asked[name] = attn_implementation
            return mock.MagicMock()

        return SimpleNamespace(from_pretrained=from_pretrained)

    with (
        mock.patch.object(module, "AutoModelForCausalLM", recorder("target")),
        mock.patch.object(module, "DFlashDraftModel", recorder("draft")),
        mock.patch.object(module, "AutoTokenizer", recorder("tokenizer")),
    ):
        module.load_models(module.parse_args([*MODELS, *flag]))
    assert asked["target"] == target_attention
    assert asked["draft"] == "flash_attention_2"


# ---- it stays as published


@pytest.mark.parametrize(
    ("file", "text", "times"),
    [
        ("dflash.py", "= DynamicCache()", 2),
        ("ddtree.py", "= DynamicCache()", 2),
        ("model/dflash.py", "= DynamicCache()", 2),
        ("dflash.py", "target.model.embed_tokens(", 1),
        ("ddtree.py", "target.model.embed_tokens(", 1),
        ("model/dflash.py", "target.model.embed_tokens(", 1),
        ("dflash.py", "target.lm_head(", 1),
        ("ddtree.py", "target.lm_head(", 1),
        ("model/dflash.py", "target.lm_head(", 1),
        ("dflash.py", ".crop(start)", 2),
        ("ddtree.py", ".crop(start)", 1),
        ("model/dflash.py", ".crop(start)", 2),
        ("dflash.py", "torch.cuda.synchronize()", 1),
        ("dflash.py", "output_ids[:, output_ids[0] != mask_token_id]", 1),
        ("ddtree.py", "output_ids[:, output_ids[0] != mask_token_id]", 1),
        ("model/dflash.py", "output_ids[:, output_ids[0] != mask_token_id]", 1),
        ("model/dflash.py", "self.layer_idx, cache_kwargs)", 1),
    ],
)
def test_the_assumptions_are_still_there(file, text, times):
    assert (REFERENCE / file).read_text(encoding="utf-8").count(text) == times


def test_nothing_of_the_tool_has_been_written_into_it():
    for file in REFERENCE.rglob("*.py"):
        assert "compatfix" not in file.read_text(encoding="utf-8")


def random_logits(depth: int, vocab: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(depth, vocab, generator=torch.Generator().manual_seed(seed)) * 1.5
