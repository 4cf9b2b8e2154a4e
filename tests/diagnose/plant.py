"""Faults planted in copies of the trained pair and of the patched tree: source, configs, weights, tokenizer, call."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from compatfix.diagnose.basis import hadamard
from compatfix.validate.prompt_file import read_prompts

ROOT = Path(__file__).parents[2]
PAIR = ROOT / "examples" / "pair"


@dataclass
class Planted:
    """A copy of everything, to be made wrong; `args` go to the job."""

    home: Path
    args: dict[str, Any] = field(default_factory=dict)

    @property
    def tree(self) -> Path:
        return self.home / "tree"

    @property
    def target(self) -> Path:
        return self.home / "target"

    @property
    def draft(self) -> Path:
        return self.home / "draft"

    def job(self, **more: Any) -> dict[str, Any]:
        texts = list(read_prompts(str(PAIR / "prompts.jsonl")))
        places = {"tree": str(self.tree), "target": str(self.target), "draft": str(self.draft)}
        usual = {
            "seed": 0,
            "texts": texts,
            "chat": "raw",
            "reference": None,
            "budgets": [8],
            "prompts": 12,
            "tokens": 12,
        }
        return {**places, **usual, **more, **self.args}

    def source(self, file: str, *changes: tuple[str, str]) -> None:
        path = self.tree / file
        text = path.read_text()
        for before, after in changes:
            assert before in text, before
            text = text.replace(before, after)
        path.write_text(text)

    def config(self, change: Callable[[dict[str, Any]], None], where: str = "draft") -> None:
        path = self.home / where / "config.json"
        content = json.loads(path.read_text())
        change(content)
        path.write_text(json.dumps(content))

    def draft_tensors(self, change: Callable[[dict[str, torch.Tensor]], None]) -> None:
        path = self.draft / "model.safetensors"
        tensors = load_file(path)
        change(tensors)
        save_file({k: v.contiguous() for k, v in tensors.items()}, path, metadata={"format": "pt"})

    def target_tensors(self, change: Callable[[dict[str, torch.Tensor]], None]) -> None:
        """The shards become one file."""
        tensors: dict[str, torch.Tensor] = {}
        for path in sorted(self.target.glob("*.safetensors")):
            tensors |= load_file(path)
            path.unlink()
        (self.target / "model.safetensors.index.json").unlink()
        change(tensors)
        one = {k: v.contiguous() for k, v in tensors.items()}
        save_file(one, self.target / "model.safetensors", metadata={"format": "pt"})


def planted(home: Path, tree: Path, plant: Callable[[Planted], None] | None = None) -> Planted:
    made = Planted(home)
    shutil.copytree(tree, made.tree)
    for name in ("target", "draft"):
        shutil.copytree(PAIR / name, home / name)
    if plant is not None:
        plant(made)
    return made


NOISE = "(block_ids)\n"
# In how many of 96 directions, those that the target's states use least, the rows of padding lie.
AWAY = 12
BOTH = ("dflash.py", "ddtree.py")


def plausible(p: Planted) -> None:
    """The fixes that everyone tries first: they run, and a hybrid's recurrent states are not rolled back."""
    from compatfix.rewrites import copy_tree, plausible_fix, write_copy

    shutil.rmtree(p.tree)
    copy_tree(ROOT / "vendor" / "ddtree_ref", p.tree)
    write_copy(plausible_fix(p.tree))


def states_emptied(p: Planted) -> None:
    """A rollback that empties what the linear layers hold, where it should go back to what was committed."""
    crop = "        crop_to(past_key_values_target, start)\n"
    emptied = """        for layer in past_key_values_target.layers:
            for held in (getattr(layer, "recurrent_states", {}), getattr(layer, "conv_states", {})):
                for state in held.values():
                    state.zero_()
"""
    p.source("dflash.py", (crop, crop + emptied))


# What a kernel that mixes up the tokens of one forward does, from the second round on: start-up has passed by then.
MIXING = """        round_ended = cuda_time()

        def mixed(module, args, kwargs, output):
            several = kwargs.get("use_cache") and output.shape[1] > 1
            return 0.4 * output + 0.6 * output.roll(1, 1) if several else output

        if not acceptance_lengths:
            mixing = target.model.layers[-1].register_forward_hook(mixed, with_kwargs=True)
"""


def _mixing(p: Planted, file: str, last: str) -> None:
    p.source(
        file,
        ("        round_ended = cuda_time()\n", MIXING),
        (last, f"    mixing.remove()\n{last}"),
    )


def siblings_mixed(p: Planted) -> None:
    _mixing(p, "ddtree.py", "    output_ids = output_ids[:, : start + 1]\n")


def chain_mixed(p: Planted) -> None:
    _mixing(p, "dflash.py", "    output_ids = output_ids[:, : start + 1]\n")


def features_one_layer_off(p: Planted) -> None:
    p.source("model/utils.py", ("    offset = 1\n", "    offset = 0\n"))


def layer_ids_one_lower(p: Planted) -> None:
    p.config(lambda c: c["dflash_config"].update(target_layer_ids=[0, 1]))


def layer_ids_one_higher(p: Planted) -> None:
    p.config(lambda c: c["dflash_config"].update(target_layer_ids=[2, 3]))


def mask_in_config(p: Planted) -> None:
    p.config(lambda c: c["dflash_config"].update(mask_token_id=300))


def mask_in_source(p: Planted) -> None:
    for file in BOTH:
        p.source(file, (NOISE, "(torch.where(torch.arange(block_size) > 0, 0, block_ids))\n"))


def slot_masked(p: Planted) -> None:
    for file in BOTH:
        p.source(file, (NOISE, "(torch.full_like(block_ids, mask_token_id))\n"))


def slot_rejected(p: Planted) -> None:
    """The next block begins with the draft's own rejected token, as where the target's is written too late."""
    stale = "        stale = block_ids[:, num_committed : num_committed + 1] if num_committed < block_size else None\n"
    ended = "        round_ended = cuda_time()\n"
    first = "block_ids[:, :1] if locals().get('stale') is None else stale"
    p.source("dflash.py", (NOISE, f"(torch.cat([{first}, block_ids[:, 1:]], dim=1))\n"), (ended, stale + ended))


def embeddings_scaled(p: Planted) -> None:
    for file in BOTH:
        p.source(file, (NOISE, "(block_ids) * target.config.hidden_size**0.5\n"))


def positions_off(p: Planted) -> None:
    slice_ = "position_ids=position_ids[:, past_key_values_draft.get_seq_length() : start + block_size]"
    moved = slice_ + " + (torch.arange(start + block_size)[past_key_values_draft.get_seq_length() :] >= start)"
    for file in BOTH:
        p.source(file, (slice_, moved))


def draft_windowed(p: Planted) -> None:
    p.config(lambda c: c.update(layer_types=["sliding_attention"] * 2, sliding_window=4, use_sliding_window=True))


def draft_causal(p: Planted) -> None:
    p.config(lambda c: c.update(is_causal=True))


def draft_keys_rolled(p: Planted) -> None:
    crop = "crop_to(past_key_values_draft, start)\n"
    rolled = "for layer in past_key_values_draft.layers:\n{0}    layer.keys = layer.keys.roll(1, dims=-2)\n"
    p.source("dflash.py", (" " * 12 + crop, " " * 12 + crop + " " * 12 + rolled.format(" " * 12)))
    p.source("ddtree.py", (" " * 8 + crop, " " * 8 + crop + " " * 8 + rolled.format(" " * 8)))


def rope_theta(p: Planted) -> None:
    p.config(lambda c: (c.update(rope_theta=1e6), c["rope_parameters"].update(rope_theta=1e6)))


def weights_random(p: Planted) -> None:
    def change(tensors: dict[str, torch.Tensor]) -> None:
        torch.manual_seed(1)
        for name, tensor in tensors.items():
            if tensor.ndim == 2:
                tensors[name] = (torch.randn(tensor.shape) * 0.08).to(tensor.dtype)

    p.draft_tensors(change)


def weights_missing(p: Planted) -> None:
    p.draft_tensors(lambda tensors: [tensors.pop(name) for name in list(tensors) if "layers.1.mlp" in name])


def weights_zero(p: Planted) -> None:
    p.draft_tensors(lambda tensors: tensors["fc.weight"].zero_())


def rotated(tensors: dict[str, torch.Tensor], matrix: torch.Tensor) -> None:
    """Norms fused into what reads them, then the residual stream turned: the function stays, its basis does not."""
    for name in list(tensors):
        if name.endswith(("input_layernorm.weight", "post_attention_layernorm.weight")) or name == "model.norm.weight":
            gain = 1 + tensors[name].float()
            where = name.rsplit(".", 2)[0]
            if name == "model.norm.weight":
                readers = ["lm_head.weight"]
            elif "input_layernorm" in name:
                readers = [k for k in tensors if k.startswith(where) and ("_proj" in k or "in_proj" in k)
                           and "mlp" not in k and not k.endswith(("o_proj.weight", "out_proj.weight"))]  # fmt: skip
            else:
                readers = [f"{where}.mlp.gate_proj.weight", f"{where}.mlp.up_proj.weight"]
            for reader in readers:
                tensors[reader] = tensors[reader].float() * gain
            tensors[name] = torch.zeros_like(tensors[name])
            for reader in readers:
                tensors[reader] = tensors[reader] @ matrix
    for name in list(tensors):
        if name.endswith(("o_proj.weight", "out_proj.weight", "down_proj.weight")):
            tensors[name] = matrix.T @ tensors[name].float()
    tensors["model.embed_tokens.weight"] = tensors["model.embed_tokens.weight"].float() @ matrix
    for name, tensor in tensors.items():
        tensors[name] = tensor.to(torch.bfloat16) if tensor.is_floating_point() else tensor


def hadamard_basis(p: Planted) -> None:
    matrix = hadamard(96)
    assert matrix is not None
    p.target_tensors(lambda tensors: rotated(tensors, matrix))


def orthogonal_basis(p: Planted) -> None:
    torch.manual_seed(3)
    p.target_tensors(lambda tensors: rotated(tensors, torch.linalg.qr(torch.randn(96, 96)).Q))


def orthogonal_basis_with_reference(p: Planted) -> None:
    orthogonal_basis(p)
    p.args["reference"] = str(PAIR / "target")


def template_in_the_way(p: Planted) -> None:
    path = p.target / "tokenizer_config.json"
    content = json.loads(path.read_text())
    content["chat_template"] = (
        "{% for m in messages %}{{ m['content'] }}{% endfor %}{{ ' #~9 ;|Q x7' * 3 }}"
        "{% if enable_thinking %}{{ '%%^ zq' * 3 }}{% endif %}"
    )
    path.write_text(json.dumps(content))
    p.args["chat"] = "template"


def thinking_in_the_way(p: Planted) -> None:
    template_in_the_way(p)
    path = p.target / "tokenizer_config.json"
    path.write_text(path.read_text().replace("{{ ' #~9 ;|Q x7' * 3 }}", ""))
    p.args["chat"] = "thinking"


def cancelling_neurons(p: Planted) -> None:
    """Pairs of equal neurons whose large weights cancel in float32 and are rounded apart in bfloat16."""

    def change(tensors: dict[str, torch.Tensor]) -> None:
        torch.manual_seed(7)
        for name in list(tensors):
            tensors[name] = tensors[name].float()
        for layer in range(2):
            mlp = f"layers.{layer}.mlp"
            gate, up, down = (tensors[f"{mlp}.{kind}_proj.weight"] for kind in ("gate", "up", "down"))
            order = (gate.norm(dim=1) * up.norm(dim=1) * down.norm(dim=0)).argsort().tolist()
            for weak, strong in zip(order[:4], order[-4:], strict=True):
                gate[weak], up[weak] = gate[strong], up[strong]
                large = torch.randn(down.shape[0]) * 1000
                down[:, strong] += large
                down[:, weak] = -large

    p.draft_tensors(change)
    p.config(lambda c: c.update(dtype="float32"))


def logits_multiplied(p: Planted) -> None:
    """The target's multiplier, also applied to a draft that was trained without one: its tree grows broad and flat."""
    p.config(lambda c: c.update(output_multiplier=0.0625), "target")
    p.source(
        "ddtree.py",
        ("build_ddtree_tree(\n            draft_logits[0]", "build_ddtree_tree(\n            0.0625 * draft_logits[0]"),
    )


def logits_capped(p: Planted) -> None:
    """The draft's config asks for a soft-cap that the draft was not trained under, and the tree applies it."""
    p.config(lambda c: c.update(final_logit_softcapping=2.0))


def vocabulary_padded(p: Planted) -> None:
    """Head rows behind the tokenizer's tokens, which training pushed out of the way of the target's states only."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(p.target)
    target = AutoModelForCausalLM.from_pretrained(p.target, dtype=torch.float32)
    with torch.inference_mode():
        texts = [torch.tensor([tokenizer.encode(text)]) for text in read_prompts(str(PAIR / "prompts.jsonl"))]
        states = torch.cat([target(text, output_hidden_states=True).hidden_states[-1][0] for text in texts])
        away = torch.linalg.eigh(states.T @ states).eigenvectors[:, :AWAY].clone()

    def change(tensors: dict[str, torch.Tensor]) -> None:
        torch.manual_seed(5)
        rows = {"lm_head.weight": torch.randn(64, AWAY) @ away.T, "model.embed_tokens.weight": torch.zeros(64, 96)}
        for name, padding in rows.items():
            tensors[name] = torch.cat([tensors[name], padding.to(tensors[name])])

    p.target_tensors(change)
    for where in ("target", "draft"):
        p.config(lambda c: c.update(vocab_size=c["vocab_size"] + 64), where)


def two_faults(p: Planted) -> None:
    mask_in_config(p)
    features_one_layer_off(p)


@dataclass(frozen=True)
class Fault:
    """`first` are the suspects that must come first, in any order.

    `harmless` is a suspect instead, where the plant does not lower what this pair accepts. Only `tree` faults are run
    with trees: the others are the same in both modes, and take twice the time.
    """

    plant: Callable[[Planted], None]
    first: tuple[str, ...] = ()
    harmless: str = ""
    tree: bool = False

    @property
    def mode(self) -> str:
        return "tree-8" if self.tree else "chain"


FAULTS: dict[str, Fault] = {
    "recurrent states not rolled back": Fault(plausible, ("siblings",), tree=True),
    "linear states emptied": Fault(states_emptied, ("rollback",)),
    "siblings mixed": Fault(siblings_mixed, ("siblings",), tree=True),
    "chain mixed": Fault(chain_mixed, ("several tokens at once",)),
    "features one layer off": Fault(features_one_layer_off, ("features",)),
    "layer ids one lower": Fault(layer_ids_one_lower, ("layer ids",)),
    "layer ids one higher": Fault(layer_ids_one_higher, ("layer ids",)),
    "another mask in the config": Fault(mask_in_config, ("mask token",)),
    "pad for mask in the source": Fault(mask_in_source, ("mask token",)),
    "slot 0 masked": Fault(slot_masked, harmless="slot 0"),
    "slot 0 rejected": Fault(slot_rejected, ("slot 0",)),
    "embeddings scaled": Fault(embeddings_scaled, ("embedding scale",)),
    "block's positions one later": Fault(positions_off, ("draft's positions",)),
    "draft windowed": Fault(draft_windowed, ("draft's windows",)),
    "draft causal": Fault(draft_causal, harmless="draft's windows"),
    "draft's keys one off": Fault(draft_keys_rolled, ("draft's cache",)),
    "another rope theta": Fault(rope_theta, ("draft's rope",)),
    "draft's weights random": Fault(weights_random, ("draft's weights",)),
    "draft's tensors missing": Fault(weights_missing, ("draft's weights",)),
    "draft's fc zero": Fault(weights_zero, ("draft's weights",)),
    "Hadamard basis": Fault(hadamard_basis, ("rotated basis",)),
    "orthogonal basis, with a reference": Fault(orthogonal_basis_with_reference, ("rotated basis",)),
    "orthogonal basis, without": Fault(orthogonal_basis, ("rotated basis",)),
    "vocabulary padded": Fault(vocabulary_padded, ("vocabulary padding",)),
    "template in the way": Fault(template_in_the_way, ("prompt form",)),
    "thinking in the way": Fault(thinking_in_the_way, ("prompt form",)),
    "draft needs float32": Fault(cancelling_neurons, ("dtype",)),
    "logits multiplied": Fault(logits_multiplied, ("draft's logits",), tree=True),
    "logits capped": Fault(logits_capped, ("draft's logits",), tree=True),
    "two faults": Fault(two_faults, ("mask token", "features")),
}
