"""Writes pagurus/_made.py from the document that the controller serves. --check: says whether it is what it would be."""

from __future__ import annotations

import json
import keyword
import re
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
DOCUMENT = HERE.parent / "show" / "api" / "openapi.json"
MADE = HERE / "pagurus" / "_made.py"
BASE = "/api/v1"

PLAIN = {"string": "str", "integer": "int", "number": "float", "boolean": "bool"}


def snake(name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()


def annotation(schema: dict[str, Any]) -> str:
    """The Python type of a schema."""
    if ref := schema.get("$ref"):
        return ref.rpartition("/")[2]
    kind = schema.get("type")
    kinds = kind if isinstance(kind, list) else [kind]
    first = kinds[0]
    if first == "array":
        out = f"list[{annotation(schema.get('items', {}))}]"
    elif first == "object":
        extra = schema.get("additionalProperties")
        out = f"dict[str, {annotation(extra)}]" if isinstance(extra, dict) else "dict[str, Any]"
    else:
        out = PLAIN.get(first, "Any")
    return out


def types(schemas: dict[str, Any]) -> list[str]:
    out = []
    for name in sorted(schemas):
        schema = schemas[name]
        needed = set(schema.get("required", ()))
        out.append(f"{name} = TypedDict({name!r}, {{")
        for field, of in schema["properties"].items():
            of = annotation(of)
            out.append(f"    {field!r}: {'Required' if field in needed else 'NotRequired'}[{of!r}],")
        out.append("}, total=False)")
        if text := schema.get("description"):
            out.append(f"{name}.__doc__ = {text!r}")
        out.append("")
    return out


def variable(name: str) -> str:
    return name + "_" if keyword.iskeyword(name) else name


def method(path: str, verb: str, op: dict[str, Any], wait: str) -> list[str]:
    """One method. wait is "await " for asyncio."""
    parameters = op.get("parameters", [])
    in_path = [p["name"] for p in parameters if p["in"] == "path"]
    in_query = [p for p in parameters if p["in"] == "query"]
    content = op.get("requestBody", {}).get("content", {}).get("application/json")
    schema = content["schema"] if content else None
    fields = schema.get("properties", {}) if schema and "$ref" not in schema else {}
    keyed = any(p["name"] == "Idempotency-Key" for p in parameters)
    given = ["self"] + [f"{n}: str" for n in in_path]
    if schema and "$ref" in schema:
        given.append(f"body: {annotation(schema)}")
    named = [f"{variable(n)}: Optional[{annotation(of)}] = None" for n, of in fields.items()]
    named += [f"{variable(p['name'])}: Optional[{PLAIN[p['schema']['type']]}] = None" for p in in_query]
    if keyed:
        named.append("idempotency_key: Optional[str] = None")
    if named:
        given += ["*"] + named
    answer = annotation(op["responses"]["200"]["content"]["application/json"]["schema"])
    route = re.sub(r"\{(\w+)\}", lambda m: "{_quoted(" + m[1] + ")}", path.removeprefix(BASE))
    query = "{" + ", ".join(f"{p['name']!r}: {variable(p['name'])}" for p in in_query) + "}"
    if schema and "$ref" in schema:
        body = "body"
    elif fields:
        body = "_given({" + ", ".join(f"{n!r}: {variable(n)}" for n in fields) + "})"
    else:
        body = "None"
    says = op["summary"].replace('"', "'") + (f". Like `{op['x-command']}`." if "x-command" in op else ".")
    return [
        f"    {'async ' if wait else ''}def {snake(op['operationId'])}({', '.join(given)}) -> {answer}:",
        f'        """{says}"""',
        f"        return cast({answer!r}, {wait}self._call({verb.upper()!r}, f{route!r}, _texts({query}), {body}, {'idempotency_key' if keyed else 'None'}))",
        "",
    ]


def made() -> str:
    document = json.loads(DOCUMENT.read_text())
    operations = sorted(
        ((path, verb, op) for path, verbs in document["paths"].items() for verb, op in verbs.items()),
        key=lambda o: o[2]["operationId"])
    plain = [o for o in operations
             if "application/json" in o[2]["responses"]["200"]["content"]
             and not set(o[2].get("requestBody", {}).get("content", {})) - {"application/json"}]
    out = [
        '"""Made by generate.py from openapi.json; edit neither."""', "",
        "from __future__ import annotations", "",
        "from typing import Any, Mapping, NotRequired, Optional, Required, TypedDict, cast",
        "from urllib.parse import quote", "", "",
        *types(document["components"]["schemas"]), "",
        "def _quoted(part: str) -> str:",
        '    return quote(part, safe="")', "", "",
        "def _given(fields: Mapping[str, Any]) -> dict[str, Any]:",
        "    return {name: value for name, value in fields.items() if value is not None}", "", "",
        "def _texts(fields: Mapping[str, Any]) -> dict[str, str]:",
        "    return {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in _given(fields).items()}", "", "",
    ]
    for name, wait in (("Operations", ""), ("AsyncOperations", "await ")):
        out += [f"class {name}:", '    """All operations that answer with one value."""', "",
                f"    {'async ' if wait else ''}def _call(self, method: str, path: str, query: Mapping[str, str], body: Any, key: Optional[str]) -> Any:",
                "        raise NotImplementedError", ""]
        for path, verb, op in plain:
            out += method(path, verb, op, wait)
        out.append("")
    return "\n".join(out).rstrip() + "\n"


if __name__ == "__main__":
    text = made()
    if "--check" in sys.argv:
        if MADE.read_text() != text:
            sys.exit("python/pagurus/_made.py is not what openapi.json says: run python3 python/generate.py")
    else:
        MADE.write_text(text)
