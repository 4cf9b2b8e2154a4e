"""How arguments reach parameters."""

from __future__ import annotations

from typing import TYPE_CHECKING

from compatfix.rewrites.flow.objects import CallSite, Fields, Obj, Scope

if TYPE_CHECKING:
    from compatfix.rewrites.flow.evaluate import Flow


def bind(flow: Flow, callee: Obj, body: Scope, site: CallSite) -> None:
    """Lets the arguments of a call flow into the parameters of the function that it calls."""
    arguments = body.node.args  # type: ignore[attr-defined]
    ordered = [argument.arg for argument in (*arguments.posonlyargs, *arguments.args)]
    keyword_only = {argument.arg for argument in arguments.kwonlyargs}
    if callee.kind == "method" and ordered and not _is_static(body):
        if callee.owner is not None:
            flow.add(body.names(ordered[0]), {callee.owner})
        ordered = ordered[1:]
    for place, values in enumerate(site.positional):
        if place < len(ordered):
            flow.add(body.names(ordered[place]), values)
        elif arguments.vararg is not None:
            rest = flow.single("sequence", body, arguments.vararg.arg, name=arguments.vararg.arg)
            flow.add(flow.fields.stored(rest, f"[{place - len(ordered)}]"), values)
    for name, values in site.keywords.items():
        if name in ordered or name in keyword_only:
            flow.add(body.names(name), values)
        elif arguments.kwarg is not None:
            rest = flow.single("dict", body, arguments.kwarg.arg, name=arguments.kwarg.arg)
            flow.add(flow.fields.stored(rest, f"['{name}']"), values)


def items_of(owners: set[Obj], fields: Fields) -> set[Obj]:
    """What iterating over these values may yield."""
    found: set[Obj] = set()
    for owner in owners:
        if owner.kind in ("dict", "sequence"):
            for name in list(fields.names(owner)):
                found |= fields.known(owner, name)
        else:
            found.add(fields.part(owner, "[*]"))
    return found


def _is_static(body: Scope) -> bool:
    return any(getattr(d, "id", "") == "staticmethod" for d in getattr(body.node, "decorator_list", ()))
