"""Write the JSON Schemas of htam's output from the pydantic models: python scripts/write_schemas.py"""

from __future__ import annotations

from htam_agent.schemas import FOLDER, models, schema_text

if __name__ == "__main__":
    for name, model in models().items():
        (FOLDER / f"{name}.json").write_text(schema_text(model), encoding="utf-8")
        print(FOLDER / f"{name}.json")
