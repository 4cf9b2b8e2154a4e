"""Generation code that no judged entry point leads to is named, whatever it looks like; helpers and scripts are not."""

from __future__ import annotations

import pytest

from compatfix.validate.load_tree import load_tree

pytestmark = pytest.mark.usefixtures("clean_modules")
LOOP = "{indent}for _ in range(4):\n{indent}    {ids} = target({ids}).logits.topk(2).indices\n"
FUNCTION = LOOP.format(indent="    ", ids="input_ids")
METHOD = LOOP.format(indent="        ", ids="ids").replace("target(", "self.target(")
SCRIPT = "if __name__ == '__main__':\n    print({name})\n"
# What is added to a tree in a module that its script imports, and what is named then.
UNJUDGED = {
    "kwargs for what is missing": (
        f"def fast_generate(model, target, input_ids, max_new_tokens, **options):\n{FUNCTION}",
        ("fast.fast_generate",),
    ),
    "everything in kwargs": (
        f"def fast_generate(model, target, **options):\n    input_ids = options['ids']\n{FUNCTION}",
        ("fast.fast_generate",),
    ),
    "a callable class": (
        "class Fast:\n    def __init__(self, model, target):\n        self.target = target\n\n"
        f"    def __call__(self, ids, n):\n{METHOD}",
        ("fast.Fast",),
    ),
    "a dataclass with a method": (
        "class Fast:\n    draft: object\n    target: object\n\n" + f"    def run(self, ids, n):\n{METHOD}",
        ("fast.Fast.run",),
    ),
    "a function that calls the class": (
        "class Fast:\n    def __init__(self, model, target):\n        self.target = target\n\n"
        f"    def __call__(self, ids, n):\n{METHOD}\n\n"
        "def fast_generate(model, target, input_ids, max_new_tokens, **options):\n"
        "    return Fast(model, target)(input_ids, max_new_tokens)\n",
        ("fast.fast_generate",),
    ),
    "two that call one another": (
        "def one(draft, target, ids):\n    return two(draft, target, ids)\n\n\n"
        "def two(draft, target, ids):\n    return one(draft, target, ids)\n",
        ("fast.one",),
    ),
    "its own loop beside a judged one": (
        "from speculate import chain_generate\n\n\n"
        "def generate(model, target, input_ids, fast=True):\n    if not fast:\n"
        f"        return chain_generate(model, target, input_ids, 0, 4, 4, None)\n{FUNCTION}",
        ("fast.generate",),
    ),
}
HARMLESS = {
    "a script's wrapper": (
        "import speculate\n\n\ndef timed(model, target, input_ids, **options):\n"
        "    return speculate.chain_generate(model, target, input_ids, **options)\n"
    ),
    "training": "def step(draft, target, input_ids, labels):\n    return target(input_ids).logits - draft(labels)\n",
    "no ids": "def methods(args, draft, target, stops):\n    return draft, target, stops\n",
    "loading": "def load(draft, target, **options):\n    return draft.to(**options), target\n",
    "a module's forward": (
        "class Both:\n    def __init__(self, draft, target):\n        self.target = target\n\n"
        f"    def forward(self, ids):\n{METHOD}"
    ),
}


def not_judged(root, source: str, name: str = "fast") -> tuple[str, ...]:
    (root / "fast.py").write_text(source)
    (root / "run.py").write_text(f"import {name}\n{SCRIPT.format(name=name)}")
    return load_tree(root).not_judged


@pytest.mark.parametrize("name", UNJUDGED)
def test_generation_code_that_no_entry_point_leads_to_is_named(variant, name):
    source, expected = UNJUDGED[name]
    assert not_judged(variant(), source) == expected


@pytest.mark.parametrize("name", HARMLESS)
def test_code_that_generates_nothing_of_its_own_is_not_named(variant, name):
    assert not_judged(variant(), HARMLESS[name]) == ()


@pytest.mark.parametrize(
    "way",
    [
        "    from fast import fast_generate\n    fast_generate(model, target, prompt, 4)\n",
        "    import fast\n    fast.fast_generate(model, target, prompt, 4)\n",
        "    return WAYS['fast'](model, target, prompt, 4)\n",
    ],
)
def test_code_that_a_judged_entry_point_calls_is_reached(variant, way):
    root = variant()
    source = (root / "speculate.py").read_text()
    head = "def generate(model, target, prompt, mask_token_id, limit, block_size, stops, budget):\n"
    assert head in source
    changed = source.replace(head, head + "    if limit < 0:\n" + "".join(f"    {line}\n" for line in way.splitlines()))
    (root / "speculate.py").write_text(
        changed + "\n\nfrom fast import fast_generate as quick\nWAYS = {'fast': quick}\n"
    )
    assert not_judged(root, UNJUDGED["kwargs for what is missing"][0]) == ()
