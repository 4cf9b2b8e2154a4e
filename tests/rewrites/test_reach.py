"""Roles follow values: through attributes, helpers, files, keyword dictionaries and other names."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from compatfix.rewrites.engine import rewrite
from compatfix.rewrites.rules import RULES

PACKAGE_SHAPE = {
    "loop.py": """
import torch
from transformers import DynamicCache
def make_cache(config):
    cache = DynamicCache(config=config)
    if hasattr(cache, "activate_past_recording"):
        cache.activate_past_recording()
    return cache
def crop_cache(cache, length):
    remove = cache.get_seq_length() - length
    if remove > 0:
        cache.crop(-remove)
def generate(model, target, ids):
    big, small = make_cache(target.config), make_cache(model.config)
    out = target(input_ids=ids, past_key_values=big, output_hidden_states=True)
    crop_cache(big, 3)
    crop_cache(small, 3)
    torch.cuda.synchronize(model.device)
    p = model.propose(target_hidden=out.hidden_states[2], past_key_values=small)
    return target(p, past_key_values=big, output_hidden_states=True).logits
""",
}
CLASS_SHAPE = {
    "engine.py": """
import torch as T
import transformers as hf
from transformers.cache_utils import DynamicCache as Kv
class Decoder:
    def __init__(self, lm, drafter, opts):
        self.lm, self.drafter = lm.eval(), drafter
        self.embed = lm.model.embed_tokens
        self.head = lm.lm_head
        self.opts = opts
        self.reset()
    def reset(self):
        self.big = Kv()
        self.small = hf.DynamicCache()
    def run(self, ids, **extra):
        return self.lm(ids, None, None, self.big, **extra)
    def rewind(self, kv, n):
        kv.crop(n)
    def step(self, ids):
        res = self.run(ids, output_hidden_states=True)
        layers = res["hidden_states"]
        feats = T.cat([layers[1 + k] for k in self.opts.layers], dim=-1)
        h = self.drafter(noise_embedding=self.embed(ids), target_hidden=feats, past_key_values=self.small)
        self.rewind(self.big, self.pos)
        return self.head(h[:, 1:]), res.logits
    def tree(self, ids, mask):
        out = self.lm.forward(ids, attention_mask=mask, past_key_values=self.big)
        for layer in self.big.layers:
            layer.keys = layer.keys[:, :, self.keep]
        return out["logits"]
""",
}
FILES_SHAPE = {
    "main.py": """
from helpers import prefill, shrink, keep
import torch
from transformers import DynamicCache
def run(net, ids, opts):
    state = {"cache": DynamicCache(), "other": DynamicCache()}
    kw = dict(past_key_values=state["cache"], use_cache=True)
    out = prefill(net, ids, **kw)
    layers = out.hidden_states
    def again(block):
        o = net(block, **kw, output_hidden_states=True)
        return o.logits
    again(ids)
    keep(state["cache"], opts.start, [0, 1])
    shrink(state["cache"], opts.start)
    sync = torch.cuda.synchronize
    sync()
def plain(net, ids):
    kv = DynamicCache()
    return net(ids, past_key_values=kv).logits
""",
    "helpers.py": """
def prefill(m, ids, **inputs):
    return m(ids, output_hidden_states=True, **inputs)
def shrink(c, n):
    c.crop(n)
def keep(c, base, picked):
    rows = [base + p for p in picked]
    for layer in c.layers:
        layer.keys = layer.keys[:, :, list(range(base)) + rows]
        layer.values = layer.values[:, :, list(range(base)) + rows]
""",
}


def edits(files: Mapping[str, str]) -> tuple[set[tuple[str, str, str]], set[str]]:
    result = rewrite({path: text.encode() for path, text in files.items()}, RULES, {rule.code for rule in RULES})
    made = {(fix.code, fix.before, fix.after) for change in result.changes for fix in change.fixes}
    return made, {finding.code for finding in result.unfixed}


def test_caches_and_crops_through_helpers() -> None:
    made, left = edits(PACKAGE_SHAPE)
    assert made == {
        ("CF201", "DynamicCache(config=config)", "new_cache(config)"),
        ("CF203", "cache.crop(-remove)", "roll_back(cache, remove)"),
        (
            "CF202",
            "target(input_ids=ids, past_key_values=big, output_hidden_states=True)",
            "verify(target, input_ids=ids, past_key_values=big, "
            "output_hidden_states=used_by(lambda states: states[2]))",
        ),
        ("CF611", "True", "used_by(lambda states: states[2])"),
        (
            "CF202",
            "target(p, past_key_values=big, output_hidden_states=True)",
            "verify(target, p, past_key_values=big, output_hidden_states=True)",
        ),
        ("CF601", "torch.cuda.synchronize(model.device)", "synchronize()"),
    }
    assert left == set()


def test_attributes_of_self() -> None:
    made, left = edits(CLASS_SHAPE)
    assert made == {
        ("CF101", "lm.model.embed_tokens", "input_embeddings(lm)"),
        ("CF102", "self.head(h[:, 1:])", "draft_logits(self.lm, h[:, 1:])"),
        ("CF103", "layers[1 + k]", "hidden_state(layers, 1 + k)"),
        ("CF201", "Kv()", "new_cache(self.lm)"),
        (
            "CF202",
            "self.lm(ids, None, None, self.big, **extra)",
            "verify(self.lm, ids, None, None, self.big, **extra)",
        ),
        (
            "CF202",
            "self.lm.forward(ids, attention_mask=mask, past_key_values=self.big)",
            "verify(self.lm, ids, attention_mask=mask, past_key_values=self.big)",
        ),
        ("CF203", "kv.crop(n)", "crop_to(kv, n)"),
    }
    assert left == {"CF206"}


def test_other_files_and_keyword_dictionaries() -> None:
    made, left = edits(FILES_SHAPE)
    assert made == {
        ("CF201", "DynamicCache()", "new_cache(net)"),
        ("CF202", "m(ids, output_hidden_states=True, **inputs)", "verify(m, ids, output_hidden_states=True, **inputs)"),
        (
            "CF202",
            "net(block, **kw, output_hidden_states=True)",
            "verify(net, block, **kw, output_hidden_states=True)",
        ),
        ("CF203", "c.crop(n)", "crop_to(c, n)"),
        ("CF206", 'keep(state["cache"], opts.start, [0, 1])', 'commit(state["cache"], [0, 1])'),
        ("CF601", "sync()", "synchronize()"),
    }
    assert left == set()


@pytest.mark.parametrize("shape", [PACKAGE_SHAPE, CLASS_SHAPE, FILES_SHAPE], ids=["package", "class", "files"])
def test_patched_shapes_are_left_alone(shape: Mapping[str, str]) -> None:
    files = {path: text.encode() for path, text in shape.items()}
    every = {rule.code for rule in RULES}
    once = {change.path: change.after for change in rewrite(files, RULES, every).changes}
    assert rewrite({**files, **once}, RULES, every).changes == []


def test_a_target_whose_class_is_in_the_tree() -> None:
    made, _ = edits(
        {
            "modeling.py": "class Big:\n  def forward(self, ids, past_key_values=None, **more):\n    return r(ids)\n",
            "main.py": "from modeling import Big\nfrom transformers import DynamicCache\nbig = Big.load(0)\n"
            "kv = DynamicCache()\nout = big(ids, past_key_values=kv, output_hidden_states=True)\n"
            "print(out.logits, out.hidden_states[1])\n",
        }
    )
    assert {code for code, _, _ in made} == {"CF201", "CF202", "CF611"}


def test_a_draft_that_returns_logits_is_still_a_draft() -> None:
    made, _ = edits(
        {
            "modeling.py": "class Small:\n  def forward(self, ids, context, past_key_values=None):\n    return r()\n",
            "main.py": "from modeling import Small\nfrom transformers import DynamicCache\nsmall = Small(config)\n"
            "kv, own = DynamicCache(), DynamicCache()\n"
            "out = big(ids, past_key_values=kv, output_hidden_states=True)\nfirst = out.logits\n"
            "p = small(ids, out.hidden_states[2][:, 1:], past_key_values=own).logits\nown.crop(4)\n",
        }
    )
    assert {(code, before) for code, before, _ in made} == {
        ("CF201", "DynamicCache()"),
        ("CF202", "big(ids, past_key_values=kv, output_hidden_states=True)"),
        ("CF203", "own.crop(4)"),
        ("CF611", "True"),
    }


def test_a_cache_is_known_by_how_a_helper_uses_it() -> None:
    made, _ = edits({"a.py": "def back(c, n):\n    if c.get_seq_length() > n:\n        c.crop(n)\n"})
    assert made == {("CF203", "c.crop(n)", "crop_to(c, n)")}
