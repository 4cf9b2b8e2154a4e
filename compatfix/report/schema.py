"""The JSON Schema of report.json, made from the dataclasses; the shapes of the sections are written down here."""

from __future__ import annotations

import types
import typing
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, Literal, Union

from compatfix.model import SCHEMA_VERSION, Report

Schema = dict[str, Any]
DIALECT = "https://json-schema.org/draft/2020-12/schema"


def report_schema() -> Schema:
    """The schema of version SCHEMA_VERSION. New fields may come without a new version, so unknown ones are allowed."""
    definitions: dict[str, Schema] = {}
    _define(Report, definitions)
    definitions |= _SHAPES
    report = definitions.pop("Report")
    report["properties"]["schema"] = {"const": SCHEMA_VERSION}
    report["properties"]["sections"] = {"type": "object", "properties": _SECTIONS}
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
        return _ref(hint.__name__)
    if origin is Literal:
        return {"enum": list(args)}
    if origin in (Union, types.UnionType):
        return {"anyOf": [_schema(arg, definitions) for arg in args]}
    if origin is tuple:
        return _list(_schema(args[0], definitions))
    if origin is Mapping or (isinstance(origin, type) and issubclass(origin, Mapping)):
        return _map(_schema(args[1], definitions))
    return dict(_PLAIN[hint])


def _ref(name: str) -> Schema:
    return {"$ref": f"#/$defs/{name}"}


def _list(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def _map(values: Schema) -> Schema:
    return {"type": "object", "additionalProperties": values}


def _object(properties: Schema, *optional: str) -> Schema:
    return {
        "type": "object",
        "properties": properties,
        "required": [name for name in properties if name not in optional],
    }


_TEXT: Schema = {"type": "string"}
_COUNT: Schema = {"type": "integer", "minimum": 0}
# What is no finite number is written as null.
_NUMBER: Schema = {"type": ["number", "null"]}
_NAME: Schema = {"type": ["string", "null"]}
_ANY_OBJECT: Schema = {"type": ["object", "null"]}
_PLAIN: dict[Any, Schema] = {
    str: _TEXT,
    int: {"type": "integer"},
    bool: {"type": "boolean"},
    float: _NUMBER,
    type(None): {"type": "null"},
}
_RAISED: Schema = {
    "anyOf": [
        {"type": "null"},
        _object({"type": _TEXT, "message": _TEXT, "place": _ANY_OBJECT, "code": _TEXT}, "place", "code"),
    ]
}
_HISTOGRAM = {"type": "object", "propertyNames": {"pattern": "^[0-9]+$"}, "additionalProperties": _COUNT}
_DIFFERENCE: Schema = {"enum": ["faster", "slower", "noise", None]}
_QUARTILES: Schema = {"anyOf": [{"type": "null"}, {**_list(_NUMBER), "minItems": 3, "maxItems": 3}]}
_SHARES = _list({"type": "number", "minimum": 0, "maximum": 1})

_SHAPES: dict[str, Schema] = {
    "Difference": _object(
        {
            "prompt": _COUNT,
            "index": _COUNT,
            "got": {"type": ["integer", "null"]},
            "expected": {"type": ["integer", "null"]},
            "margin": _NUMBER,
            "behind": _NUMBER,
            "kind": {"enum": ["rounding", "corruption"]},
            "state": _ANY_OBJECT,
        },
        "behind",
        "kind",
        "state",
    ),
    "Tally": _object(
        {
            "mode": _TEXT,
            "profile": _TEXT,
            "planned": _COUNT,
            "run": _COUNT,
            "same": _COUNT,
            "tokens": _COUNT,
            "rounds": _COUNT,
            "forwards": _COUNT,
            "histogram": _HISTOGRAM,
            "per_position": _list(_COUNT),
            "accepted": _object({"full": _COUNT, "partial": _COUNT, "zero": _COUNT}),
            "stage_times": _map({"type": "number"}),
            "nodes": _object({"largest": _NUMBER, "nodes": _COUNT, "wrong_argmax": _COUNT, "bad": _ANY_OBJECT}),
            "differences": _list(_ref("Difference")),
            "error": _RAISED,
            "rounds_followed": _COUNT,
            "rounds_short": _COUNT,
        },
        *("rounds_followed", "rounds_short"),
    ),
    "Compared": _object(
        {
            "mode": _TEXT,
            "run": _COUNT,
            "same": _COUNT,
            "tokens": _COUNT,
            "forwards": _COUNT,
            "differences": _list(_ref("Difference")),
            "error": _RAISED,
            "accepted_length": _NUMBER,
            "forwards_per_token": _NUMBER,
            "speed_up": _NUMBER,
            "histogram": _HISTOGRAM,
            "per_position": _SHARES,
            "stage_seconds": _map({"type": "number"}),
        },
        *("accepted_length", "forwards_per_token", "speed_up", "histogram", "per_position", "stage_seconds"),
    ),
    "BenchmarkRow": _object(
        {
            "mode": _TEXT,
            "prompts": _COUNT,
            "tokens": _COUNT,
            "rounds": _COUNT,
            "accepted_length": _NUMBER,
            "histogram": _HISTOGRAM,
            "per_position": _SHARES,
            "forwards": _COUNT,
            "forwards_per_token": _NUMBER,
            "error": _NAME,
            "stage_seconds": _map({"type": "number"}),
            "stage_shares": _map({"type": "number"}),
        },
        "error",
    ),
    "TimedRow": _object(
        {
            "mode": _TEXT,
            "role": {"enum": ["baseline", "control", "reference", "mode"]},
            "against": _TEXT,
            "tokens": _COUNT,
            "rounds": _COUNT,
            **dict.fromkeys(("speed_up", "low", "high"), _NUMBER),
            "difference": _DIFFERENCE,
            **dict.fromkeys(("prefill_speed_up", "prefill_low", "prefill_high"), _NUMBER),
            "prefill_difference": _DIFFERENCE,
            **dict.fromkeys(("accepted_length", "tokens_per_round", "forwards_per_token"), _NUMBER),
            **dict.fromkeys(("draft_forwards_per_token", "reads_per_round", "peak_bytes"), _NUMBER),
            "histogram": _HISTOGRAM,
            "per_position": _SHARES,
            "read_places": _map(_COUNT),
            "seconds_per_token": _QUARTILES,
            "prefill_seconds": _QUARTILES,
            "stage_seconds": _map({"type": "number"}),
            "error": _RAISED,
        }
    ),
    "Estimate": _object(
        {
            "estimate": {"const": True},
            "draft_cost": _NUMBER,
            "assumptions": _list(_TEXT),
            "breaks": _TEXT,
            "rows": _list(
                _object({"mode": _TEXT, "accepted_length": _NUMBER, "speed_up": _NUMBER, "beyond": {"type": "boolean"}})
            ),
        }
    ),
    "EntryPoint": {
        "description": "A generation function that was run: where it is, whether --entry named it, what its parameters "
        "were taken for (by role, by value, left to their defaults), and what --result said of its result.",
        **_object(
            {
                "kind": {"enum": ["chain", "tree", "loop"]},
                "entry": {"type": "string", "pattern": "^[^:]+:[^:]+$"},
                "named": {"type": "boolean"},
                "roles": _map(_TEXT),
                "literals": {"type": "object"},
                "defaults": _list(_TEXT),
                "result": _object({"field": _NAME, "only_new": {"type": "boolean"}}),
            },
            "result",
        ),
    },
    "Fault": _object(
        {
            "name": _TEXT,
            "what": _TEXT,
            "mode": _TEXT,
            "applicable": {"type": "boolean"},
            "caught": {"type": "boolean"},
            "by": _TEXT,
        },
        "by",
    ),
    "Rung": _object(
        {
            "title": _TEXT,
            "codes": _list(_TEXT),
            "status": {"enum": ["raised", "wrong", "lossless"]},
            "message": _TEXT,
            "place": _ANY_OBJECT,
            "accepted": {"anyOf": [{"type": "null"}, _map(_NUMBER)]},
            "next_code": _NAME,
        }
    ),
    "Sampled": _object(
        {
            "mode": _TEXT,
            "function": _TEXT,
            "status": {"enum": ["same", "different", "undecided", "raised"]},
            "planned": _COUNT,
            "texts": _COUNT,
            "tokens": _COUNT,
            "p": _NUMBER,
            "evidence": _ANY_OBJECT,
            "detectable": {"anyOf": [{"type": "null"}, _map(_NUMBER)]},
            "lacks": _NAME,
            "error": _RAISED,
        }
    ),
    "Suspect": _object(
        {
            "name": _TEXT,
            "question": _TEXT,
            "code": _TEXT,
            "status": {"enum": ["cause", "contributes", "unmeasured", "not the cause", "not applicable"]},
            "reason": _TEXT,
            "evidence": {"enum": ["measured", "read", "assumed"]},
            "step": _NAME,
            "toggle": _NAME,
            "mode": _NAME,
            "before": _NUMBER,
            "after": _NUMBER,
            "gain": _NUMBER,
            "chance": _NUMBER,
            "prompts": _COUNT,
            "level": _COUNT,
        }
    ),
    "WithMargins": _object(
        {
            "dtype": _TEXT,
            "prompts": _COUNT,
            "tokens": _COUNT,
            "noise": _NUMBER,
            "modes": _list(_ref("Compared")),
            "device": _TEXT,
            "attention": _TEXT,
            "functions": _map(_TEXT),
            "layers": _list(_COUNT),
            "depth": _COUNT,
            "values": _TEXT,
            "windows": _map(_COUNT),
            "faults": _list(_ref("Fault")),
        },
        *("device", "attention", "functions", "layers", "depth", "values", "windows", "faults"),
    ),
}

_SECTIONS: dict[str, Schema] = {
    "inspection": {"type": "object"},
    "patch": _object(
        {
            "fixes": _list(_object({"code": _TEXT, "place": _TEXT, "before": _TEXT, "after": _TEXT})),
            "copied": _COUNT,
            "ignored": _map(_COUNT),
            "suppressed": _map(_COUNT),
        },
        "suppressed",
    ),
    "validation": _object(
        {
            "prompts": _COUNT,
            "tokens": _COUNT,
            "budgets": _list(_COUNT),
            **dict.fromkeys(("chain", "tree", "loop"), _NAME),
            "entry_points": _list(_ref("EntryPoint")),
            "not_judged": _list(_TEXT),
        },
        *("chain", "tree", "loop", "entry_points", "not_judged"),
    ),
    "losslessness": _object(
        {
            "references": _list(_object({"index": _COUNT, "disagreements": {"type": "array"}, "noise": _NUMBER})),
            "plain": {"anyOf": [{"type": "null"}, _ref("Tally")]},
            "modes": _list(_ref("Tally")),
            "exercised": _map(_map(_COUNT)),
        }
    ),
    "faults": _list(_ref("Fault")),
    "bf16": _ref("WithMargins"),
    "sampling": _object({"sampler": _TEXT, "alarm": _NUMBER, "limit": _NUMBER, "modes": _list(_ref("Sampled"))}),
    "long_run": _object(
        {
            "tokens": _COUNT,
            "prompt_length": _COUNT,
            "unit": _NUMBER,
            "noise": _list(_object({"state": _NUMBER, "logits": _NUMBER})),
            "modes": _list(
                _object(
                    {
                        "mode": _TEXT,
                        "produced": _COUNT,
                        "same": {"type": "boolean"},
                        "points": _list({"type": "object"}),
                    }
                )
            ),
        }
    ),
    "slice": _ref("WithMargins"),
    "weights": _ref("WithMargins"),
    "measured": _object(
        {
            **dict.fromkeys(("device", "device_kind", "dtype", "label", "baseline"), _TEXT),
            **dict.fromkeys(("prompts", "tokens", "planned", "repetitions", "warm_ups", "threads"), _COUNT),
            "sampler": _NAME,
            "stop_tokens": _list(_COUNT),
            "target": _map(_COUNT),
            "draft": _map(_COUNT),
            "tiny": {"type": "boolean"},
            "tiny_below": _COUNT,
            "level": _NUMBER,
            "floor": _NUMBER,
            "prompts_enough": {"type": ["integer", "null"]},
            "rows": _list(_ref("TimedRow")),
            "recommendation": _object(
                {
                    "mode": _TEXT,
                    "sentence": _TEXT,
                    "evidence": {"const": "measured"},
                    "edge": {"type": "boolean"},
                    "speed_up": _ANY_OBJECT,
                }
            ),
            "estimate": {"anyOf": [{"type": "null"}, _ref("Estimate")]},
            "warnings": _list(_TEXT),
            "runs": _object({"note": _TEXT, "all": _list({"type": "object"})}),
        }
    ),
    "benchmark": _object({"label": _TEXT, "rows": _list(_ref("BenchmarkRow"))}),
    "ladder": _list(_ref("Rung")),
    "cache": _object(
        {
            "class_name": _TEXT,
            "layers": _list(_TEXT),
            "states": _ANY_OBJECT,
            "read_by_draft": _list({"type": "integer"}),
        }
    ),
    "diagnosis": _object(
        {
            "modes": _list(_TEXT),
            "prompts": _COUNT,
            "tokens": _COUNT,
            "runs": _COUNT,
            "block": _COUNT,
            "baseline": _map(_NUMBER),
            "repaired": _map(_NUMBER),
            "floor": _map(_NUMBER),
            "wrong_texts": _map(_COUNT),
            "repaired_wrong_texts": _map(_COUNT),
            "levels": _list(_object({"repair": _TEXT, "toggle": _TEXT, "accepted": _map(_NUMBER)})),
            "suspects": _list(_ref("Suspect")),
            "left_out": _list(_TEXT),
        }
    ),
    "baseline": _object({"file": _TEXT, "known": _COUNT, "gone": _list({"type": "object"})}),
}
