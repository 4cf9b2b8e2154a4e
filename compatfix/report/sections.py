"""The shapes of a report's sections in JSON Schema, written down by hand: they are plain data of many makers."""

from __future__ import annotations

from typing import Any

Schema = dict[str, Any]


def ref(name: str) -> Schema:
    return {"$ref": f"#/$defs/{name}"}


def list_of(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def map_of(values: Schema) -> Schema:
    return {"type": "object", "additionalProperties": values}


def object_of(properties: Schema, *optional: str) -> Schema:
    return {
        "type": "object",
        "properties": properties,
        "required": [name for name in properties if name not in optional],
    }


TEXT: Schema = {"type": "string"}
COUNT: Schema = {"type": "integer", "minimum": 0}
# What is no finite number is written as null.
NUMBER: Schema = {"type": ["number", "null"]}
NAME: Schema = {"type": ["string", "null"]}
ANY_OBJECT: Schema = {"type": ["object", "null"]}
PLAIN: dict[Any, Schema] = {
    str: TEXT,
    int: {"type": "integer"},
    bool: {"type": "boolean"},
    float: NUMBER,
    type(None): {"type": "null"},
}
RAISED: Schema = {
    "anyOf": [
        {"type": "null"},
        object_of({"type": TEXT, "message": TEXT, "place": ANY_OBJECT, "code": TEXT}, "place", "code"),
    ]
}
HISTOGRAM = {"type": "object", "propertyNames": {"pattern": "^[0-9]+$"}, "additionalProperties": COUNT}
DIFFERENCE: Schema = {"enum": ["faster", "slower", "noise", None]}
QUARTILES: Schema = {"anyOf": [{"type": "null"}, {**list_of(NUMBER), "minItems": 3, "maxItems": 3}]}
SHARES = list_of({"type": "number", "minimum": 0, "maximum": 1})

SHAPES: dict[str, Schema] = {
    "Difference": object_of(
        {
            "prompt": COUNT,
            "index": COUNT,
            "got": {"type": ["integer", "null"]},
            "expected": {"type": ["integer", "null"]},
            "margin": NUMBER,
            "behind": NUMBER,
            "kind": {"enum": ["rounding", "corruption"]},
            "state": ANY_OBJECT,
        },
        "behind",
        "kind",
        "state",
    ),
    "Tally": object_of(
        {
            "mode": TEXT,
            "profile": TEXT,
            "planned": COUNT,
            "run": COUNT,
            "same": COUNT,
            "tokens": COUNT,
            "rounds": COUNT,
            "forwards": COUNT,
            "histogram": HISTOGRAM,
            "per_position": list_of(COUNT),
            "accepted": object_of({"full": COUNT, "partial": COUNT, "zero": COUNT}),
            "stage_times": map_of({"type": "number"}),
            "nodes": object_of({"largest": NUMBER, "nodes": COUNT, "wrong_argmax": COUNT, "bad": ANY_OBJECT}),
            "differences": list_of(ref("Difference")),
            "error": RAISED,
            "rounds_followed": COUNT,
            "rounds_short": COUNT,
        },
        *("rounds_followed", "rounds_short"),
    ),
    "Compared": object_of(
        {
            "mode": TEXT,
            "run": COUNT,
            "same": COUNT,
            "tokens": COUNT,
            "forwards": COUNT,
            "differences": list_of(ref("Difference")),
            "error": RAISED,
            "accepted_length": NUMBER,
            "forwards_per_token": NUMBER,
            "speed_up": NUMBER,
            "histogram": HISTOGRAM,
            "per_position": SHARES,
            "stage_seconds": map_of({"type": "number"}),
        },
        *("accepted_length", "forwards_per_token", "speed_up", "histogram", "per_position", "stage_seconds"),
    ),
    "BenchmarkRow": object_of(
        {
            "mode": TEXT,
            "prompts": COUNT,
            "tokens": COUNT,
            "rounds": COUNT,
            "accepted_length": NUMBER,
            "histogram": HISTOGRAM,
            "per_position": SHARES,
            "forwards": COUNT,
            "forwards_per_token": NUMBER,
            "error": NAME,
            "stage_seconds": map_of({"type": "number"}),
            "stage_shares": map_of({"type": "number"}),
        },
        "error",
    ),
    "TimedRow": object_of(
        {
            "mode": TEXT,
            "role": {"enum": ["baseline", "control", "reference", "mode"]},
            "against": TEXT,
            "tokens": COUNT,
            "rounds": COUNT,
            **dict.fromkeys(("speed_up", "low", "high"), NUMBER),
            "difference": DIFFERENCE,
            **dict.fromkeys(("prefill_speed_up", "prefill_low", "prefill_high"), NUMBER),
            "prefill_difference": DIFFERENCE,
            **dict.fromkeys(("accepted_length", "tokens_per_round", "forwards_per_token"), NUMBER),
            **dict.fromkeys(("draft_forwards_per_token", "reads_per_round", "peak_bytes"), NUMBER),
            "histogram": HISTOGRAM,
            "per_position": SHARES,
            "read_places": map_of(COUNT),
            "seconds_per_token": QUARTILES,
            "prefill_seconds": QUARTILES,
            "stage_seconds": map_of({"type": "number"}),
            "error": RAISED,
        }
    ),
    "Estimate": object_of(
        {
            "estimate": {"const": True},
            "draft_cost": NUMBER,
            "assumptions": list_of(TEXT),
            "breaks": TEXT,
            "rows": list_of(
                object_of({"mode": TEXT, "accepted_length": NUMBER, "speed_up": NUMBER, "beyond": {"type": "boolean"}})
            ),
        }
    ),
    "EntryPoint": {
        "description": "A generation function that was run: where it is, whether --entry named it, what its parameters "
        "were taken for (by role, by value, left to their defaults), and what --result said of its result.",
        **object_of(
            {
                "kind": {"enum": ["chain", "tree", "loop"]},
                "entry": {"type": "string", "pattern": "^[^:]+:[^:]+$"},
                "named": {"type": "boolean"},
                "roles": map_of(TEXT),
                "literals": {"type": "object"},
                "defaults": list_of(TEXT),
                "result": object_of({"field": NAME, "only_new": {"type": "boolean"}}),
            },
            "result",
        ),
    },
    "Fault": object_of(
        {
            "name": TEXT,
            "what": TEXT,
            "mode": TEXT,
            "applicable": {"type": "boolean"},
            "caught": {"type": "boolean"},
            "by": TEXT,
        },
        "by",
    ),
    "Rung": object_of(
        {
            "title": TEXT,
            "codes": list_of(TEXT),
            "status": {"enum": ["raised", "wrong", "lossless"]},
            "message": TEXT,
            "place": ANY_OBJECT,
            "accepted": {"anyOf": [{"type": "null"}, map_of(NUMBER)]},
            "next_code": NAME,
        }
    ),
    "Sampled": object_of(
        {
            "mode": TEXT,
            "function": TEXT,
            "status": {"enum": ["same", "different", "undecided", "raised"]},
            "planned": COUNT,
            "texts": COUNT,
            "tokens": COUNT,
            "p": NUMBER,
            "evidence": ANY_OBJECT,
            "detectable": {"anyOf": [{"type": "null"}, map_of(NUMBER)]},
            "lacks": NAME,
            "error": RAISED,
        }
    ),
    "Suspect": object_of(
        {
            "name": TEXT,
            "question": TEXT,
            "code": TEXT,
            "status": {"enum": ["cause", "contributes", "unmeasured", "not the cause", "not applicable"]},
            "reason": TEXT,
            "evidence": {"enum": ["measured", "read", "assumed"]},
            "step": NAME,
            "toggle": NAME,
            "mode": NAME,
            "before": NUMBER,
            "after": NUMBER,
            "gain": NUMBER,
            "chance": NUMBER,
            "prompts": COUNT,
            "level": COUNT,
        }
    ),
    "WithMargins": object_of(
        {
            "dtype": TEXT,
            "prompts": COUNT,
            "tokens": COUNT,
            "noise": NUMBER,
            "modes": list_of(ref("Compared")),
            "device": TEXT,
            "attention": TEXT,
            "functions": map_of(TEXT),
            "layers": list_of(COUNT),
            "depth": COUNT,
            "values": TEXT,
            "windows": map_of(COUNT),
            "faults": list_of(ref("Fault")),
        },
        *("device", "attention", "functions", "layers", "depth", "values", "windows", "faults"),
    ),
}

SECTIONS: dict[str, Schema] = {
    "inspection": {"type": "object"},
    "patch": object_of(
        {
            "fixes": list_of(object_of({"code": TEXT, "place": TEXT, "before": TEXT, "after": TEXT})),
            "copied": COUNT,
            "ignored": map_of(COUNT),
            "suppressed": map_of(COUNT),
        },
        "suppressed",
    ),
    "validation": object_of(
        {
            "prompts": COUNT,
            "tokens": COUNT,
            "budgets": list_of(COUNT),
            **dict.fromkeys(("chain", "tree", "loop"), NAME),
            "entry_points": list_of(ref("EntryPoint")),
            "not_judged": list_of(TEXT),
        },
        *("chain", "tree", "loop", "entry_points", "not_judged"),
    ),
    "losslessness": object_of(
        {
            "references": list_of(object_of({"index": COUNT, "disagreements": {"type": "array"}, "noise": NUMBER})),
            "plain": {"anyOf": [{"type": "null"}, ref("Tally")]},
            "modes": list_of(ref("Tally")),
            "exercised": map_of(map_of(COUNT)),
        }
    ),
    "faults": list_of(ref("Fault")),
    "bf16": ref("WithMargins"),
    "sampling": object_of({"sampler": TEXT, "alarm": NUMBER, "limit": NUMBER, "modes": list_of(ref("Sampled"))}),
    "long_run": object_of(
        {
            "tokens": COUNT,
            "prompt_length": COUNT,
            "unit": NUMBER,
            "noise": list_of(object_of({"state": NUMBER, "logits": NUMBER})),
            "modes": list_of(
                object_of(
                    {
                        "mode": TEXT,
                        "produced": COUNT,
                        "same": {"type": "boolean"},
                        "points": list_of({"type": "object"}),
                    }
                )
            ),
        }
    ),
    "slice": ref("WithMargins"),
    "weights": ref("WithMargins"),
    "measured": object_of(
        {
            **dict.fromkeys(("device", "device_kind", "dtype", "label", "baseline"), TEXT),
            **dict.fromkeys(("prompts", "tokens", "planned", "repetitions", "warm_ups", "threads"), COUNT),
            "sampler": NAME,
            "stop_tokens": list_of(COUNT),
            "target": map_of(COUNT),
            "draft": map_of(COUNT),
            "tiny": {"type": "boolean"},
            "tiny_below": COUNT,
            "level": NUMBER,
            "floor": NUMBER,
            "prompts_enough": {"type": ["integer", "null"]},
            "rows": list_of(ref("TimedRow")),
            "recommendation": object_of(
                {
                    "mode": TEXT,
                    "sentence": TEXT,
                    "evidence": {"const": "measured"},
                    "edge": {"type": "boolean"},
                    "speed_up": ANY_OBJECT,
                }
            ),
            "estimate": {"anyOf": [{"type": "null"}, ref("Estimate")]},
            "warnings": list_of(TEXT),
            "runs": object_of({"note": TEXT, "all": list_of({"type": "object"})}),
        }
    ),
    "benchmark": object_of({"label": TEXT, "rows": list_of(ref("BenchmarkRow"))}),
    "ladder": list_of(ref("Rung")),
    "cache": object_of(
        {
            "class_name": TEXT,
            "layers": list_of(TEXT),
            "states": ANY_OBJECT,
            "read_by_draft": list_of({"type": "integer"}),
        }
    ),
    "diagnosis": object_of(
        {
            "modes": list_of(TEXT),
            "prompts": COUNT,
            "tokens": COUNT,
            "runs": COUNT,
            "block": COUNT,
            "baseline": map_of(NUMBER),
            "repaired": map_of(NUMBER),
            "floor": map_of(NUMBER),
            "wrong_texts": map_of(COUNT),
            "repaired_wrong_texts": map_of(COUNT),
            "levels": list_of(object_of({"repair": TEXT, "toggle": TEXT, "accepted": map_of(NUMBER)})),
            "suspects": list_of(ref("Suspect")),
            "left_out": list_of(TEXT),
        }
    ),
    "baseline": object_of({"file": TEXT, "known": COUNT, "gone": list_of({"type": "object"})}),
}
