"""JSON schemas that the package ships."""

import importlib.resources
import json
from typing import Any

import jsonschema


def shipped_schema(name: str) -> Any:
    """A schema of reports, once it was found to be one."""
    text = (
        importlib.resources.files("fl_epe.reporting")
        .joinpath(f"{name}.schema.json")
        .read_text()
    )
    found = json.loads(text)
    jsonschema.Draft202012Validator.check_schema(found)
    return found
