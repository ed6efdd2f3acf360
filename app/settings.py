"""One frozen Settings model for flags, environment and .env."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, ValidationError
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from app.errors import UsageError
from app.items import parse_size

PREFIX = "APP_"
Size = Annotated[int, BeforeValidator(parse_size)]  # bytes; written as 256MiB, 2GB, …


def _parse_arguments(given: Any) -> Any:
    if not isinstance(given, str):
        return given
    try:
        value = json.loads(given)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not JSON: {error}") from None
    if not isinstance(value, dict):
        raise ValueError('not a JSON object; write it like \'{"dtype": "float32"}\'')
    return value


# NoDecode: else the environment's text is parsed before it is validated, and a mistake in it ends in a traceback
Arguments = Annotated[dict[str, Any], NoDecode, BeforeValidator(_parse_arguments)]


class Settings(BaseSettings):
    """Every field is a flag (`--host-buffer`), an environment variable (`APP_HOST_BUFFER`) and a line of `.env`.

    Flags win over the environment, the environment over `.env`.
    """

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, env_file=".env", env_ignore_empty=True, frozen=True, extra="ignore"
    )

    manifest: str | None = Field(None, description="the list of items: a file, an http(s) URL, or - for standard input")
    manifest_format: Literal["auto", "text", "jsonl", "csv"] = Field(
        "auto", description="how the manifest is written; auto goes by its extension, else text"
    )
    limit: int | None = Field(None, ge=1, description="only the first N items of the manifest")
    dry_run: bool = Field(False, description="read the whole manifest, say counts and sizes, and fetch nothing")

    processor: str = Field("stats", description="stats, digest, none, or module:name of a function or class")
    processor_args: Arguments = Field(default_factory=dict, description="its keyword arguments, a JSON object")

    output: str = Field("out", min_length=1, description="output folder: ledger, results, artifacts")
    fresh: bool = Field(False, description="move an output folder that exists aside, and start anew")
    retry_failed: bool = Field(False, description="do failed items again")

    devices: str = Field("auto", description="auto, cpu, or a list: cuda:0,cuda:1 or cpu:0,cpu:1; one lane each")
    host_buffer: Size | None = Field(
        None, ge=1, description="host memory for slabs and landings, shared by all lanes (default: a quarter of memory)"
    )
    device_buffer: Size | None = Field(
        None, ge=1, description="memory for landings on each GPU (default: 40 % of what is free)"
    )
    read_ahead: Size = Field(
        256 << 20, ge=0, description="how many bytes of small items are read ahead, shared by all lanes"
    )
    slab_size: Size = Field(8 << 20, ge=1 << 16, description="the piece in which bytes are received; a power of two")
    part_size: Size = Field(64 << 20, ge=1 << 16, description="the longest byte range asked for in one request")
    connections: int = Field(8, ge=1, le=256, description="connections per lane")

    attempts: int = Field(5, ge=1, description="tries without progress before an item fails")
    connect_timeout: float = Field(10.0, gt=0, description="seconds for a connection to be made")
    stall_timeout: float = Field(30.0, gt=0, description="seconds without a byte while reading")
    ca_file: str | None = Field(None, description="certificates to trust, instead of the system's (PEM)")
    grace: float = Field(20.0, ge=0, description="seconds that the item on the device gets after the first Ctrl-C")

    loop: Literal["auto", "uvloop", "asyncio"] = Field("auto", description="event loop; auto is uvloop where it is")
    progress: Literal["auto", "on", "off"] = Field("auto", description="live display; auto: on a terminal")
    log_format: Literal["text", "json"] = Field("text", description="log lines for people or for machines")

    @classmethod
    def read(cls, **flags: Any) -> Settings:
        """Settings from these flags, over the environment, over `.env`.

        Raises: UsageError, in one line, for the first value that is wrong.
        """
        try:
            return cls(**flags)
        except ValidationError as error:
            raise UsageError(_first_line(error, flags)) from None
        except UnicodeDecodeError as error:
            raise UsageError(f".env is not UTF-8 at byte {error.start + 1}") from None

    def model_post_init(self, _: Any) -> None:
        if self.slab_size & (self.slab_size - 1):
            raise UsageError(f"--slab-size {self.slab_size} is not a power of two; 8MiB is")
        if self.part_size < self.slab_size:
            raise UsageError(f"--part-size {self.part_size} is less than --slab-size {self.slab_size}")


def _first_line(error: ValidationError, flags: dict[str, Any]) -> str:
    first = error.errors(include_url=False)[0]
    name = str(first["loc"][0])
    said = first["msg"].removeprefix("Value error, ")
    where = f"--{name.replace('_', '-')}" if name in flags else f"{PREFIX}{name.upper()}"
    return f"{where} {first['input']!r}: {said[0].lower()}{said[1:]}"
