"""The JSON Schema of report.json, made from the dataclasses; those of its sections are in sections.py."""

from __future__ import annotations

import types
import typing
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, Literal, Union

from compatfix.model import SCHEMA_VERSION, Report
from compatfix.report.sections import PLAIN, SECTIONS, SHAPES, Schema, list_of, map_of, ref

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def report_schema() -> Schema:
    """The schema of version SCHEMA_VERSION. New fields may come without a new version, so unknown ones are allowed."""
    definitions: dict[str, Schema] = {}
    _define(Report, definitions)
    definitions |= SHAPES
    report = definitions.pop("Report")
    report["properties"]["schema"] = {"const": SCHEMA_VERSION}
    report["properties"]["sections"] = {"type": "object", "properties": SECTIONS}
    report["required"] = [*report["required"], "version", "started", "schema"]
    head = {"$schema": DIALECT, "$id": f"urn:compatfix:report:{SCHEMA_VERSION}", "title": "A report of compatfix"}
    return {**head, **report, "$defs": dict(sorted(definitions.items()))}


def _define(kind: type, definitions: dict[str, Schema]) -> None:
    if kind.__name__ in definitions:
        return
    definitions[kind.__name__] = {}
    hints = typing.get_type_hints(kind)
    known = [f for f in fields(kind) if f.init]
    definitions[kind.__name__] = {
        "type": "object",
        "description": " ".join((kind.__doc__ or "").split("\n\n")[0].split()),
        "properties": {f.name: _schema(hints[f.name], definitions) for f in known},
        "required": [f.name for f in known if f.default is MISSING and f.default_factory is MISSING],
    }


def _schema(hint: Any, definitions: dict[str, Schema]) -> Schema:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return {}
    if is_dataclass(hint):
        assert isinstance(hint, type)
        _define(hint, definitions)
        return ref(hint.__name__)
    if origin is Literal:
        return {"enum": list(args)}
    if origin in (Union, types.UnionType):
        return {"anyOf": [_schema(arg, definitions) for arg in args]}
    if origin is tuple:
        return list_of(_schema(args[0], definitions))
    if origin is Mapping or (isinstance(origin, type) and issubclass(origin, Mapping)):
        return map_of(_schema(args[1], definitions))
    return dict(PLAIN[hint])
