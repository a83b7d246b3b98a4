"""The JSON Schema of the configuration file, for editors and for the documentation."""

import json
from typing import Any

from oauth_ratelimit.config.models import FileModel


def config_schema() -> dict[str, Any]:
    """Return the JSON Schema of the configuration file."""
    schema = FileModel.model_json_schema()
    schema["title"] = "oauth_ratelimit"
    for definition in (schema, *schema["$defs"].values()):
        for named in definition["properties"].values():
            named.pop("title", None)  # the key once more, with a capital
            _name_keys(named)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema"} | schema


def schema_text() -> str:
    """Return the shipped ``config.schema.json``, byte for byte."""
    return json.dumps(config_schema(), indent=2) + "\n"


def _name_keys(schema: dict[str, Any]) -> None:
    """Turn "keys like this have such values" into "all keys are like this", so that an editor marks a bad key."""
    for pattern, values in schema.pop("patternProperties", {}).items():
        schema["additionalProperties"] = values
        schema["propertyNames"] = {**schema.get("propertyNames", {}), "pattern": pattern}
