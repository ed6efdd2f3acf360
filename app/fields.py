"""The fields of one entry of a manifest, checked: they make an item, or a reason why not."""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NoReturn
from urllib.parse import unquote

from app.items import DIGEST_HEX_LENGTH, DIGESTS, Item

FIELDS = ("id", "url", "size", *DIGESTS, "headers", "params")
MAX_SIZE_BYTES = (1 << 63) - 1  # what the ledger's integers hold
MAX_DEPTH = 100  # of objects and arrays in JSON, far below what Python's recursive writers and copiers bear
CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")

_BLANK = " \t\r\n\v\f"  # what bytes.strip() strips
_HEX = {name: re.compile(rf"[0-9A-Fa-f]{{{length}}}") for name, length in DIGEST_HEX_LENGTH.items()}
_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")  # RFC 9110 section 5.6.2, token
_NOT_IN_HEADER = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")  # RFC 9110 section 5.5
_NOT_IN_NAME = re.compile(r"[^A-Za-z0-9._-]+")
_SURROGATE = re.compile(r"\\u[dD]")


class EntryError(ValueError):
    """Why an entry is refused, without where it stands."""


def build_item(fields: Mapping[str, Any], locate: Callable[[str], str]) -> Item:
    """The item that these fields, as JSON holds them, say; `locate` makes its url absolute.

    Raises: EntryError
    """
    check_known(fields, "field")
    entry = fields.get("url")
    if entry is not None and not isinstance(entry, str):
        raise EntryError(f"url {shown(entry)} is not a string")
    entry = (entry or "").strip(_BLANK)
    if not entry:
        raise EntryError("has no url")
    url = locate(entry)
    return Item(
        id=_id(fields.get("id"), url),
        url=url,
        size=_size(fields.get("size")),
        digests={name: _digest(name, fields[name]) for name in DIGESTS if fields.get(name) is not None},
        headers=_headers(fields.get("headers")),
        params=_object("params", fields.get("params")),
    )


def check_known(names: Iterable[str], what: str) -> None:
    """Raises: EntryError, for the first name that is none of FIELDS; `what` says what it is: a field, a column."""
    for name in names:
        if name not in FIELDS:
            raise EntryError(f"unknown {what} {shown(name)} (known: {', '.join(FIELDS)})")


def _id(value: Any, url: str) -> str:
    if value is None:
        return derive_id(url)
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, str) or not value.strip() or CONTROL.search(value):
        raise EntryError(f"id {shown(value)} is not a string of visible characters")
    return value


def _size(value: Any) -> int | None:
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool):
        raise EntryError(f"size {shown(value)} is not an integer")
    if not 0 <= value <= MAX_SIZE_BYTES:
        raise EntryError(f"size {shown(value)} is {'negative' if value < 0 else 'more than 8 EiB'}")
    return value


def _digest(name: str, value: Any) -> str:
    """Lower-case hex; stores say digests in base64 too, whose padding tells it apart."""
    text = value.strip() if isinstance(value, str) else ""
    if _HEX[name].fullmatch(text):
        return text.lower()
    try:
        digest = base64.b64decode(text.encode(), validate=True)
    except binascii.Error:
        digest = b""
    length = DIGEST_HEX_LENGTH[name]
    if len(digest) * 2 != length:
        raise EntryError(f"{name} {shown(value)} is not a digest of {length} hex digits, nor the same in base64")
    return digest.hex()


def _headers(value: Any) -> Mapping[str, str]:
    headers = _object("headers", value)
    for name, text in headers.items():
        if not _HEADER_NAME.fullmatch(name):
            raise EntryError(f"headers: {shown(name)} is not a header's name")
        if not isinstance(text, str):
            raise EntryError(f"headers: {name} is not a string but {shown(text)}")
        if _NOT_IN_HEADER.search(text):
            raise EntryError(f"headers: {name} has a line break or another control character")
    return headers


def _object(what: str, value: Any) -> Mapping[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise EntryError(f"{what}: not a JSON object but {shown(value)}")
    return value


def derive_id(url: str) -> str:
    """An id for an item without one: its path's last segment, made plain, and 16 hex digits of its URL's sha256."""
    path = url.partition("#")[0].partition("?")[0]
    segment = path.rpartition("/")[2] if path.count("/") > 2 else ""
    if "%" in segment:
        segment = unquote(segment)
    plain = _NOT_IN_NAME.sub("_", segment)[:60] or "item"
    return f"{plain}-{hashlib.sha256(url.encode()).hexdigest()[:16]}"


def parse_object(text: str) -> Mapping[str, Any]:
    """The JSON object that this text is.

    Raises: EntryError
    """
    value = parse_json(text)
    if not isinstance(value, dict):
        raise EntryError(f"not a JSON object but {shown(value)}")
    return value


def parse_json(text: str) -> Any:
    """The JSON value that this text is, such that it can be written as JSON again.

    Raises: EntryError, with what is wrong and where.
    """
    try:
        value = _JSON.decode(text)
        if text.count("{") + text.count("[") > MAX_DEPTH and _is_deep(value):
            raise RecursionError
        if _SURROGATE.search(text):  # half a pair is no character: it could be neither sent nor stored
            json.dumps(value, ensure_ascii=False).encode()
    except json.JSONDecodeError as error:
        said = f"{error.msg[0].lower()}{error.msg[1:]}".removesuffix(" at")
        raise EntryError(f"bad JSON: {said} at character {error.pos + 1}") from None
    except UnicodeEncodeError:
        raise EntryError("bad JSON: a \\u escape is half a surrogate pair") from None
    except RecursionError:
        raise EntryError(f"bad JSON: nested more than {MAX_DEPTH} deep") from None
    except EntryError:
        raise
    except ValueError:  # of int(), for thousands of digits
        raise EntryError("bad JSON: a number has too many digits") from None
    return value


def _is_deep(value: Any) -> bool:
    level = [value]
    for _ in range(MAX_DEPTH):
        nested = [one for one in level if isinstance(one, dict | list)]
        level = [one for outer in nested for one in (outer.values() if isinstance(outer, dict) else outer)]
    return any(isinstance(one, dict | list) for one in level)


def _refuse_number(text: str) -> NoReturn:
    raise EntryError(f"bad JSON: {shown(text)} is not a number that JSON can hold")


def _finite(text: str) -> float:
    number = float(text)
    return number if math.isfinite(number) else _refuse_number(text)


_JSON = json.JSONDecoder(parse_constant=_refuse_number, parse_float=_finite)


def shown(value: Any) -> str:
    """The value on one short line of a message."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:76]}…{text[-1]}"
