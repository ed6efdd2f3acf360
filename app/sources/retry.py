"""Pure: what is worth retrying, when, how long."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

RETRIED_STATUSES = frozenset({408, 425, 429, 500, 502, 503, 504})
LONGEST_WAIT_S = 60.0
# So much more, and a part's attempts count anew: with a server that drops every connection we still get there.
PROGRESS_BYTES = 1 << 20

_FIRST_WAIT_S = 0.25


def wait_s(failures: int, uniform: Callable[[], float], after_s: float | None = None) -> float:
    """Seconds to wait after so many failures in a row: full jitter over an exponential (AWS, "Exponential Backoff
    And Jitter", 2015), and never less than the server asked for, up to a cap."""
    ceiling = min(LONGEST_WAIT_S, _FIRST_WAIT_S * 2.0 ** min(failures, 16))
    return max(uniform() * ceiling, min(after_s or 0.0, LONGEST_WAIT_S))


def retry_after_s(value: str | None, now: datetime) -> float | None:
    """Seconds of a `Retry-After`: a number, or an HTTP date (RFC 9110, 10.2.3); None where it says nothing we know."""
    if value is None:
        return None
    if re.fullmatch(r"\s*[0-9]+\s*", value):
        return float(value)
    try:
        at = parsedate_to_datetime(value)
    except (ValueError, OverflowError):
        return None
    at = at if at.tzinfo else at.replace(tzinfo=UTC)
    return max(0.0, (at - now).total_seconds())


class Patience:
    """Attempts of one part, counted anew whenever it has got on."""

    def __init__(self, attempts: int) -> None:
        self._attempts = attempts
        self._failures = 0
        self._counted_from = 0  # the part's first missing byte when the count began

    def failed(self, position: int) -> int | None:
        """A charged failure with the part's next missing byte there: failures in a row so far, None when that was
        the last one allowed."""
        if position - self._counted_from >= PROGRESS_BYTES:
            self._failures, self._counted_from = 0, position
        self._failures += 1
        return self._failures if self._failures < self._attempts else None
