"""What models cost: a table in a file, each price with its source and date; a user's table wins over the shipped one.

Prices are US dollars for a million tokens. A price holds for a model at one host: the same name on a server of one's
own is another offer. A model's dated name (gpt-5-2025-08-07) has the price of the plain one, if it has none of its own.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from urllib.parse import urlsplit

from pydantic import Field, ValidationError

from htam_agent.coding.roles import ModelChoice
from htam_agent.errors import SettingsError
from htam_agent.words import Record

SHIPPED = Path(__file__).with_name("prices.toml")
HOSTS = {
    None: "api.openai.com",
    "openai": "api.openai.com",
    "anthropic": "api.anthropic.com",
    "deepseek": "api.deepseek.com",
}
"""Where a provider is reached when no address is set."""

_DATED = re.compile(r"[-@](\d{4}-\d{2}-\d{2}|\d{8}|latest)$")


class Price(Record):
    """One line of a table. Without `host` it holds wherever the model is asked."""

    model: str = Field(min_length=1)
    host: str | None = None
    input: float = Field(ge=0)
    output: float = Field(ge=0)
    source: str = Field(min_length=1)
    date: str = Field(pattern=r"^\d{4}-\d{2}(-\d{2})?$")
    """When the source said so."""

    def usd(self, prompt_tokens: float, completion_tokens: float) -> float:
        """US dollars. Prompt tokens that the endpoint had in a cache are counted at the full price."""
        return (prompt_tokens * self.input + completion_tokens * self.output) / 1e6


class PriceTable(Record):
    """Prices, the ones that win first."""

    prices: tuple[Price, ...] = ()

    @classmethod
    def load(cls, own: Path | None = None) -> PriceTable:
        """The user's table, if there is one, before the shipped one. Raises SettingsError when it does not fit."""
        mine = _read(own) if own is not None else ()
        return cls(prices=(*mine, *_read(SHIPPED)))

    def find(self, choice: ModelChoice) -> Price | None:
        """The price of this model where it is asked; None when it is not known."""
        host = _host(choice)
        for name in dict.fromkeys((choice.model, choice.bare_model, _DATED.sub("", choice.bare_model))):
            for price in self.prices:
                if price.model == name and price.host in (None, host):
                    return price
        return None


def _host(choice: ModelChoice) -> str | None:
    if choice.base_url is None:
        return HOSTS.get(choice.provider)
    return urlsplit(choice.base_url).hostname


def _read(path: Path) -> tuple[Price, ...]:
    where = f"The price table {str(path)!r} (HTAM_PRICES)"
    try:
        text = path.read_text(encoding="utf-8")
        entries = tomllib.loads(text).get("price", [])
        return tuple(Price.model_validate(entry) for entry in entries)
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{where} cannot be read: {error}.", "Name a readable TOML file.", "prices") from error
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"{where} is not TOML: {error}.", "Mend the line.", "prices") from error
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"])) or "an entry"
        raise SettingsError(
            f"{where} has an entry that does not fit: {field}: {first['msg']}.",
            "An entry is [[price]] with model, input, output (US dollars a million tokens), source and date.",
            "prices",
        ) from error
