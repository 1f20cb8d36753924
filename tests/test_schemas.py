"""The shipped JSON Schemas are those of the models, and real output fits them."""

from __future__ import annotations

import json

import jsonschema
import pytest

from htam_agent.schemas import FOLDER, models, schema_text


@pytest.mark.parametrize("name", sorted(models()))
def test_a_schema_is_shipped_as_the_model_is(name: str) -> None:
    shipped = (FOLDER / f"{name}.json").read_text(encoding="utf-8")
    assert shipped == schema_text(models()[name]), "run scripts/write_schemas.py and read the difference"
    jsonschema.Draft202012Validator.check_schema(json.loads(shipped))


def test_no_schema_is_left_behind() -> None:
    assert {path.stem for path in FOLDER.glob("*.json")} == set(models())
