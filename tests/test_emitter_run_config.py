"""The options of a run as text: what is compared gets in, what may be a secret never does."""

from __future__ import annotations

import argparse
import base64
import logging
import random
import string
import unicodedata
import uuid
from enum import Enum
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from emitter.run_config import ALLOWED_OPTIONS, VALUE_LIMIT, run_config, safe_text

TOKENS = (
    "hf_aBcDeFgHiJkLmNoP",
    "sk-abcdefghijkl",
    "sk-proj-abcdefghijkl",
    "ghp_abcdefgh",
    "gho_abcdefgh",
    "github_pat_abcdefgh",
    "glpat-abcdefgh",
    "xoxb-123-abc",
    "AKIAIOSFODNN7EXAMPLE",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2ln",
    "nvapi-abcdefgh",
    "npm_abcdefgh",
    "pypi-AgEIcHlw",
    "dop_v1_abcdefgh",
    "dckr_pat_abcdefgh",
    "sk_live_abcdefgh",
    "gsk_abcdefgh",
    "hvs.abcdefgh",
    "lin_api_abcdefgh",
    "AIzaSyabcdefgh",
    "Bearer abc",
    "basic dXNlcg",
    "password hunter2",
    "550e8400-e29b-41d4-a716-446655440000",
    "https://user:pass@host.example/path",
    "user@host",
    "/mnt/checkpoints/run",
    "..\\share",
    "~bob",
    "~/data",
    "x-api-key: abc",
    "WANDB_API_KEY=abc",
    "localhost:4317",
)


class Backend(Enum):
    """An enumeration as Megatron-LM's arguments hold some."""

    FLASH = 1


class Broken(Fraction):
    """A number whose value cannot be had."""

    def __float__(self) -> float:
        raise RuntimeError("device lost")


class Scalar:
    """An object that converts to a number without being one."""

    def __float__(self) -> float:
        return 1.0


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (True, "True"),
        (False, "False"),
        (0, "0"),
        (4096, "4096"),
        (3e-4, "0.0003"),
        (1e-8, "1e-08"),
        (float("inf"), "inf"),
        (Fraction(1, 4), "0.25"),
        ("cosine", "cosine"),
        ("Et*3|(tt|)*29,m|L", "Et*3|(tt|)*29,m|L"),
        ("M-M-M*-M-M-M-M*-M-M-M-", "M-M-M*-M-M-M-M*-M-M-M-"),
        ("flash_attention_with_sliding_window", "flash_attention_with_sliding_window"),
        ("CosineAnnealingWarmRestarts", "CosineAnnealingWarmRestarts"),
        ("GPT2BPETokenizer", "GPT2BPETokenizer"),
        ("DeepSeek-V3-671B-A37B", "DeepSeek-V3-671B-A37B"),
        ("969, 30, 1", "969, 30, 1"),
        ((0.9, 0.95), "0.9, 0.95"),
        (["core_attn", "mlp"], "core_attn, mlp"),
        ([32, 32, 19531250], "32, 32, 19531250"),
    ],
)
def test_plain_values_are_shown_as_they_are(value: object, text: str) -> None:
    """A number, a switch, a word or a list of them reads as the training program wrote it."""
    assert run_config({"optimizer": value}) == {"optimizer": text}


@pytest.mark.parametrize(
    "value",
    [
        None,
        "",
        "  ",
        [],
        {"a": 1},
        [None],
        [["a"]],
        b"bytes",
        1j,
        Backend.FLASH,
        object(),
        Scalar(),
        Broken(1, 2),
        10**5000,
        2**63,
    ],
    ids=lambda value: type(value).__name__,
)
def test_other_values_are_left_out(value: object) -> None:
    """What is no plain value has no text: no object gets to say what it is."""
    assert run_config({"optimizer": value}) == {}


def test_only_listed_options_are_taken() -> None:
    """Whatever else a program's arguments hold stays there, unless it is asked for."""
    arguments = argparse.Namespace(lr=0.1, wandb_project="p", load="checkpoints", my_ratio=2, seed=None)
    assert run_config(arguments) == {"lr": "0.1"}
    assert run_config(arguments, ["my_ratio"]) == {"lr": "0.1", "my_ratio": "2"}
    assert run_config({"lr": 0.1}, ["absent"]) == {"lr": "0.1"}


def test_every_listed_name_is_an_argument_name() -> None:
    """The list has no commas, dashes or leftovers of its layout."""
    assert len(ALLOWED_OPTIONS) > 150
    assert [name for name in ALLOWED_OPTIONS if not name.isidentifier() or name != name.lower()] == []
    assert {"lr", "clip_grad", "seed", "tensor_model_parallel_size", "moe_router_topk", "ckpt_format"} < ALLOWED_OPTIONS


def test_a_long_value_is_cut() -> None:
    """A value has 120 characters at most, be it a text or a list."""
    (text,) = run_config({"split": "ab " * 100}).values()
    assert text == ("ab " * 40).strip()
    (text,) = run_config({"split": list(range(1000))}).values()
    assert text.startswith("0, 1, 2")
    assert len(text) <= VALUE_LIMIT


@pytest.mark.parametrize(
    "name",
    [
        *("hf_token", "secret", "db_password", "passwd", "api_key", "apiKey", "APIKey", "apikey", "credential"),
        *("otlp.headers", "extra-header", "auth", "http_authorization", "session_cookie", "TOKEN", "hfToken"),
    ],
)
def test_a_name_that_may_hold_a_secret_is_refused(name: str) -> None:
    """Asking for such an option is an error that names it."""
    with pytest.raises(ValueError, match=rf"may hold a secret is not exported \(got '{name}'"):
        run_config({}, [name])


@pytest.mark.parametrize("name", ["max_tokens", "tokenizer_type", "num_key_value_heads", "author_rate", "keyboard"])
def test_a_name_that_only_sounds_so_is_taken(name: str) -> None:
    """Words are compared, not letters; a listed name needs no excuse."""
    assert run_config({name: 1}, [name]) == {name: "1"}


@pytest.mark.parametrize("name", ["", "a b", "a/b", "1st", "a`b", "a" * 65, "naïve", 3])
def test_a_name_that_is_no_options_name_is_refused(name: str) -> None:
    """A name becomes a label's value: it is made of harmless characters."""
    with pytest.raises(ValueError, match="an option's name has letters"):
        run_config({}, [name])


def test_more_is_a_list() -> None:
    """A single name given as such would be read letter by letter."""
    with pytest.raises(ValueError, match=r"Write \['lr_mult'\]"):
        run_config({}, "lr_mult")


@settings(max_examples=400)
@given(token=st.sampled_from(TOKENS), before=st.text(max_size=8), after=st.text(max_size=8))
def test_a_secret_of_known_shape_never_gets_in(token: str, before: str, after: str) -> None:
    """Tokens, passwords, URLs, addresses, paths and headers are left out, whatever stands around them."""
    for value in (token, f"{before} {token} {after}", [before, token, after], "ab " * 50 + token):
        assert run_config({"optimizer": value, "mine": value}, ["mine"]) == {}


def test_a_long_random_word_never_gets_in() -> None:
    """Keys without a known shape are left out for their looks: one in a thousand may pass at 24 characters."""
    passed = []
    for seed in range(1000):
        source = random.Random(seed)
        length = source.randint(24, 64)
        passed += [
            key
            for key in (
                "".join(source.choices("0123456789abcdef", k=length)),
                "".join(source.choices(string.ascii_letters + string.digits, k=length)),
                "".join(source.choices(string.ascii_uppercase + "234567", k=length)),
                "".join(source.choices(string.ascii_lowercase + string.digits, k=length)),
                base64.urlsafe_b64encode(source.randbytes(length)).decode().rstrip("="),
                str(uuid.UUID(int=source.getrandbits(128))),
            )
            if safe_text(key) is not None or safe_text(f"adam {key}") is not None
        ]
    assert len(passed) <= 6, passed


@given(
    st.dictionaries(
        st.sampled_from(sorted(ALLOWED_OPTIONS)),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(), st.lists, max_leaves=8
        ),
    )
)
def test_no_value_can_break_a_label_or_a_query(options: dict[str, object]) -> None:
    """A value has no slash, at sign, quote, backtick, colon or control character, and 1 to 120 characters."""
    for name, text in run_config(options).items():
        assert name in options
        assert 1 <= len(text) <= VALUE_LIMIT
        assert not set("/\\@:;=&$#?!\"'`") & set(text)
        assert not [char for char in text if unicodedata.category(char)[0] in "CZ" and char != " "]


def test_what_is_left_out_is_named_and_not_shown(caplog: pytest.LogCaptureFixture) -> None:
    """A debug line has the names of what was left out, and none of their values."""
    with caplog.at_level(logging.DEBUG, "emitter.run_config"):
        run_config({"optimizer": "hf_aBcDeFgHiJkL", "lr": 0.1, "seed": None, "model_type": Backend.FLASH})
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("DEBUG", "emitter.run_config: left out, as no plain values: model_type, optimizer.")
    ]
