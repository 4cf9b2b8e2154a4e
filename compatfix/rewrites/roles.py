"""Who is who: targets, drafts and caches, told from how values are used and never from their names.

A target is called with a cache for its logits, and something of speculation is done with it: its hidden states are
asked for, its cache is rolled back, or its embeddings or head are used by others. A draft takes features of the target,
or is a model class of the tree itself. A cache belongs to whoever is called with it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable

from compatfix.rewrites.flow.evaluate import RUNTIME, Flow
from compatfix.rewrites.flow.objects import CallSite, Obj

CACHE_ARGUMENTS = ("past_key_values", "cache", "past_key_value")
_DRAFT_ARGUMENTS = {"target_hidden", "noise_embedding", "target_hidden_states"}
_CACHE_PLACE = (
    3  # forward(input_ids, attention_mask, position_ids, past_key_values, …) in every causal LM of the library
)
_NOT_A_FORWARD = {"generate", "update", "append", "from_pretrained", "from_config"}
_ROLLBACKS = {f"{RUNTIME}.{name}" for name in ("crop_to", "roll_back", "commit")}
_OF_A_TARGET = {"lm_head", "embed_tokens", "get_input_embeddings", "get_output_embeddings"}


class Roles:
    """The roles of all values of a project."""

    def __init__(self, flow: Flow) -> None:
        self.flow = flow
        self._reads = self._all_reads()
        self.caches: set[Obj] = set()
        self.targets: set[Obj] = set()
        self.target_caches: set[Obj] = set()
        self.drafts: set[Obj] = set()
        self.draft_results: set[Obj] = set()
        self.target_calls: dict[ast.Call, CallSite] = {}
        self.hidden_states: set[Obj] = set()
        self._find_drafts()
        self._find_caches()
        self._find_targets()
        self._find_target_calls()

    def models_of(self, site: CallSite) -> set[Obj]:
        """What this call runs the forward of."""
        models: set[Obj] = set()
        for callee in site.callees:
            if callee.kind == "field" and callee.parent is not None:
                if callee.name in ("forward", "__call__"):
                    models.add(callee.parent)
                elif callee.name not in _NOT_A_FORWARD and callee.parent.kind != "import":
                    models.add(callee)
            elif callee.kind in ("opaque", "call", "instance"):
                models.add(callee)
            elif callee.kind == "method" and callee.name in ("forward", "__call__") and callee.owner is not None:
                models.add(callee.owner)
        return models

    def caches_of(self, site: CallSite) -> set[Obj]:
        """The caches that this call is given."""
        found: set[Obj] = set()
        for name in CACHE_ARGUMENTS:
            found |= site.keywords.get(name, set())
        for place, values in enumerate(site.positional):
            found |= {v for v in values if v in self.caches or (place == _CACHE_PLACE and len(site.positional) > 3)}
        return {value for value in found if value.kind in ("opaque", "call", "field", "instance")}

    def derived(self, values: Iterable[Obj], sources: set[Obj]) -> bool:
        """Whether one of the values is a source or was computed from one, through items, methods and torch."""
        pending, seen = list(values), set()
        while pending:
            value = pending.pop()
            if value in seen:
                continue
            seen.add(value)
            if value in sources:
                return True
            if value.parent is not None:
                pending.append(value.parent)
            if value.kind == "sequence":
                pending.extend(v for name in self.flow.fields.names(value) for v in self.flow.fields.known(value, name))
            if value.kind == "call" and isinstance(value.node, ast.Call) and (site := self.flow.calls.get(value.node)):
                pending.extend(c.parent for c in site.callees if c.kind == "field" and c.parent is not None)
                if any(c.kind == "import" and c.name.startswith("torch") for c in site.callees):
                    pending.extend(v for argument in site.arguments() for v in argument)
        return False

    # -- in the order of the constructor

    def _all_reads(self) -> dict[Obj, set[str]]:
        reads: dict[Obj, set[str]] = {}
        for module in self.flow.project.modules():
            for node in ast.walk(module.tree):
                name = None
                if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
                    name = node.attr
                elif isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
                    name = str(node.slice.value)
                if name is not None:
                    for value in self.flow.values_of(node.value):  # type: ignore[attr-defined]
                        reads.setdefault(value, set()).add(name)
        return reads

    def _find_drafts(self) -> None:
        for site in self.flow.calls.values():
            models = self.models_of(site)
            own = {m for m in models if self._is_draft_class(m, site)}
            if own or (_DRAFT_ARGUMENTS & site.keywords.keys() and models):
                self.drafts |= own or models
                self.draft_results.add(site.result)

    def _is_draft_class(self, model: Obj, site: CallSite) -> bool:
        """A model class of the tree, unless it is called as a causal LM is and takes nothing of a target's layers."""
        forward = model.scope.method("forward") if model.kind == "instance" and model.scope is not None else None
        if forward is None or forward.scope is None:
            return False
        if not self._asks_for_logits(site):
            return True
        if _DRAFT_ARGUMENTS & {argument.arg for argument in forward.scope.parameters}:
            return True
        layers = {
            self.flow.fields.part(other.result, "hidden_states")
            for other in self.flow.calls.values()
            if "hidden_states" in self._reads.get(other.result, ())
        }
        return any(self.derived(argument, layers) for argument in site.arguments())

    def _find_caches(self) -> None:
        for site in self.flow.calls.values():
            for callee in site.callees:
                if callee.kind == "import" and is_cache_class(callee.name):
                    self.caches.add(site.result)
            for name in CACHE_ARGUMENTS[::2]:
                self.caches |= {v for v in site.keywords.get(name, ()) if v.kind in ("opaque", "call", "field")}
        self.caches |= {v for v, names in self._reads.items() if "get_seq_length" in names and v.kind != "instance"}
        for module in self.flow.project.modules():
            for scope in self.flow.project.scopes(module).values():
                for values in scope.values.values():
                    self.caches |= {v for v in values if any(is_cache_class(a) for a in v.annotations)}

    def _find_targets(self) -> None:
        rolled_back: set[Obj] = set()
        used: set[Obj] = set()
        for node, site in self.flow.calls.items():
            if isinstance(node.func, ast.Attribute) and node.func.attr == "crop":
                rolled_back |= self.flow.values_of(node.func.value)
            for callee in site.callees:
                if callee.kind == "import" and site.positional:
                    if callee.name in _ROLLBACKS:
                        rolled_back |= site.positional[0]
                    elif callee.name in (f"{RUNTIME}.input_embeddings", f"{RUNTIME}.draft_logits"):
                        used |= site.positional[0]
        for site in self.flow.calls.values():
            if site.result in self.draft_results or not self._asks_for_logits(site):
                continue
            caches = self.caches_of(site)
            models = self.models_of(site) - self.drafts
            if not caches and not self._returns_cache(site):
                continue
            speculative = (
                self._asks_for_hidden_states(site)
                or bool(caches & rolled_back)
                or any(m in used or self._offers_parts(m) for m in models)
            )
            if speculative:
                self.targets |= models

    def _find_target_calls(self) -> None:
        for node, site in self.flow.calls.items():
            if site.result in self.draft_results or not self.models_of(site) & self.targets:
                continue
            caches = self.caches_of(site)
            if not caches and not self._returns_cache(site):
                continue
            self.target_calls[node] = site
            self.target_caches |= caches
            for name in (*CACHE_ARGUMENTS, "['past_key_values']", "['cache']"):
                self.target_caches.add(self.flow.fields.part(site.result, name))
            for name in ("hidden_states", "['hidden_states']"):
                self.hidden_states.add(self.flow.fields.part(site.result, name))
        self.caches |= self.target_caches

    def _asks_for_logits(self, site: CallSite) -> bool:
        reads = self._reads.get(site.result, set())
        return bool({"output_hidden_states", "logits_to_keep"} & site.keywords.keys() or {"logits"} & reads)

    def _asks_for_hidden_states(self, site: CallSite) -> bool:
        if "hidden_states" in self._reads.get(site.result, set()):
            return True
        asked = [k.value for k in site.node.keywords if k.arg == "output_hidden_states"]
        if asked:
            return not (isinstance(asked[0], ast.Constant) and not asked[0].value)
        return "output_hidden_states" in site.keywords

    def _returns_cache(self, site: CallSite) -> bool:
        return bool(set(CACHE_ARGUMENTS) & self._reads.get(site.result, set()))

    def _offers_parts(self, model: Obj) -> bool:
        reads = self._reads.get(model, set())
        inner = self._reads.get(self.flow.fields.part(model, "model"), set())
        return bool(_OF_A_TARGET & (reads | inner))


def is_cache_class(qualified: str) -> bool:
    if qualified == f"{RUNTIME}.new_cache":
        return True
    return qualified.startswith("transformers.") and qualified.rpartition(".")[2].endswith("Cache")
