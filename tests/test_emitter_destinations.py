"""Destinations: what a user writes, what it means, and what of it nobody sees."""

from __future__ import annotations

import pytest

from emitter.destinations import Console, Otlp, Scrape, destination, told_without_secrets
from emitter.export import start


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("console", Console()),
        ("scrape:9464", Scrape(port=9464)),
        ("scrape:0.0.0.0:0", Scrape(host="0.0.0.0", port=0)),
        ("scrape:[::1]:9464", Scrape(host="::1", port=9464)),
        ("otlp:grpcs://h:1", Otlp(url="grpcs://h:1")),
    ],
)
def test_destinations(text: str, expected: object) -> None:
    """Every form that the documentation names is understood."""
    assert destination(text) == expected


@pytest.mark.parametrize(
    ("url", "endpoint"),
    [
        ("http://h:4318", "http://h:4318/v1/metrics"),
        ("http://h/", "http://h/v1/metrics"),
        ("https://u:p@h/x/v1/metrics?a=b", "https://u:p@h/x/v1/metrics?a=b"),
        ("grpc://h", "http://h:4317"),
        ("grpcs://[::1]:7", "https://[::1]:7"),
    ],
)
def test_endpoints(url: str, endpoint: str) -> None:
    """A URL without a path gets OTLP's; gRPC becomes host and port."""
    assert Otlp(url=url).endpoint("metrics") == endpoint


@pytest.mark.parametrize(
    "text",
    [
        *("", "foo", "consol", "scrape", "scrape:", "scrape:x", "scrape:65536", "scrape::1", "scrape:h:1/x"),
        *("otlp:", "otlp:h:4317", "otlp:ftp://h", "otlp:http://", "otlp:grpc://h/x", "otlp:http://h:99999"),
    ],
)
def test_unknown_destination_is_refused_at_once(text: str) -> None:
    """A destination that nobody understands is an error in one line, before anything is opened."""
    with pytest.raises(ValueError, match=r"^emitter: .* \(got .*\)\.") as caught:
        start("run-7", ["scrape:0", text])
    assert "\n" not in str(caught.value)


def test_secrets_are_not_shown() -> None:
    """Neither a password nor a query string of a URL is printed."""
    with pytest.raises(ValueError, match="got 'ftp://h/x'") as caught:
        destination("otlp:ftp://user:secret@h/x?token=secret")
    assert "secret" not in str(caught.value)
    assert str(Otlp(url="http://user:secret@h/x?token=secret")) == "otlp:http://h/x"


@pytest.mark.parametrize(
    ("message", "told"),
    [
        ("POST http://user:secret@h:4318/v1/metrics?key=secret failed", "POST http://h:4318/v1/metrics failed"),
        ("(got 'otlp:http://user:sec@ret@h/x'). Is it up?", "(got 'otlp:http://h/x'). Is it up?"),
        ("retries exceeded with url: /v1/traces?key=secret (Caused by: refused)", None),
        ("user:secret@h:4317 is down (why?)", "h:4317 is down (why?)"),
    ],
)
def test_secrets_of_a_message_are_not_shown(message: str, told: str | None) -> None:
    """What an exporter says of its URL is told without password and query; questions stay questions."""
    assert told_without_secrets(message) == (told or "retries exceeded with url: /v1/traces (Caused by: refused)")
