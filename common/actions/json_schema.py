"""JSON Schemas of the arguments of actions, for programs that call actions as tools. Pure."""

from __future__ import annotations

from typing import Any

from computerrl.common.actions.spec import ActionSpec, Param

Json = dict[str, Any]

_TYPES = {int: "integer", float: "number", bool: "boolean", str: "string"}


def arguments_schema(spec: ActionSpec) -> Json:
    """JSON Schema of the arguments of an action."""
    return {
        "type": "object",
        "properties": {param.name: _value_schema(param) for param in spec.params},
        "required": [param.name for param in spec.params if param.default is ...],
        "additionalProperties": False,
    }


def _value_schema(param: Param) -> Json:
    kinds: list[Json] = [
        {"type": "array", "items": _one_of([{"type": _TYPES[kind]} for kind in param.items])}
        if kind is list
        else {"type": _TYPES[kind]}
        for kind in param.kinds
    ]
    schema: Json = {"enum": list(param.choices)} if param.choices else _one_of(kinds)
    if param.default is None:
        schema = _one_of([schema, {"type": "null"}])
    return schema if param.default is ... else {**schema, "default": param.default}


def _one_of(schemas: list[Json]) -> Json:
    return schemas[0] if len(schemas) == 1 else {"anyOf": schemas}
