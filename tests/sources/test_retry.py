"""What is worth retrying, when, how long."""

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.sources.retry import LONGEST_WAIT_S, PROGRESS_BYTES, RETRIED_STATUSES, Patience, retry_after_s, wait_s

NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (None, None),
        ("0", 0.0),
        ("120", 120.0),
        (" 7 ", 7.0),
        ("Thu, 01 Jan 2026 00:00:30 GMT", 30.0),
        ("Thu, 01 Jan 2026 00:00:30 -0000", 30.0),
        ("Wed, 31 Dec 2025 23:59:00 GMT", 0.0),
        ("-1", None),
        ("1.5", None),
        ("soon", None),
        ("", None),
        ("²", None),
        ("Thu, 99 Jan 2026 00:00:30 GMT", None),
        ("Thu, 01 Jan 99999999999999999999 00:00:30 GMT", None),
    ],
)
def test_retry_after_is_seconds_or_a_date_and_else_nothing(value, seconds):
    assert retry_after_s(value, NOW) == seconds


@given(st.text(max_size=40))
def test_for_any_retry_after_there_is_no_error_and_no_negative_wait(value):
    seconds = retry_after_s(value, NOW)
    assert seconds is None or seconds >= 0


@given(st.integers(0, 10**6))
def test_for_any_moment_a_retry_after_date_is_the_time_until_it(seconds):
    at = NOW + timedelta(seconds=seconds)
    assert retry_after_s(format_datetime(at, usegmt=True), NOW) == seconds


@given(st.integers(1, 10**6), st.floats(0, 1), st.none() | st.floats(0, 1e9))
def test_for_any_failures_a_wait_is_bounded_and_never_under_what_the_server_asked_for(failures, draw, after):
    waited = wait_s(failures, lambda: draw, after)
    assert min(after or 0.0, LONGEST_WAIT_S) <= waited <= LONGEST_WAIT_S


@given(st.integers(1, 20))
def test_for_any_failures_the_wait_is_drawn_from_nothing_up_to_a_ceiling_that_doubles(failures):
    assert wait_s(failures, lambda: 0.0) == 0.0
    ceiling, next_ceiling = wait_s(failures, lambda: 1.0), wait_s(failures + 1, lambda: 1.0)
    assert next_ceiling == min(2 * ceiling, LONGEST_WAIT_S)


def test_the_statuses_worth_retrying_are_those_of_the_rules():
    assert sorted(RETRIED_STATUSES) == [408, 425, 429, 500, 502, 503, 504]


@given(st.integers(1, 20), st.integers(0, 1 << 40))
def test_for_any_number_of_attempts_the_last_failure_without_progress_is_the_last(attempts, position):
    patience = Patience(attempts)
    said = [patience.failed(position) for _ in range(attempts)]
    assert said == [*range(1, attempts), None]


@given(st.integers(2, 10), st.integers(1, 50))
def test_for_any_attempts_a_part_that_gets_on_with_every_try_is_never_given_up(attempts, tries):
    patience = Patience(attempts)
    assert all(patience.failed(n * PROGRESS_BYTES) is not None for n in range(tries))


def test_attempts_start_anew_when_a_mebibyte_has_arrived_over_several_tries():
    patience = Patience(3)
    assert [patience.failed(n * PROGRESS_BYTES // 2) for n in range(6)] == [1, 2, 1, 2, 1, 2]


def test_little_progress_does_not_start_the_attempts_anew():
    patience = Patience(3)
    assert [patience.failed(position) for position in (0, 1, PROGRESS_BYTES - 1)] == [1, 2, None]


def test_a_single_attempt_is_the_last():
    assert Patience(1).failed(0) is None
