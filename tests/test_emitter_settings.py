"""Settings: flags over environment over default, and errors that say what to write."""

from __future__ import annotations

import argparse
import logging
from dataclasses import fields

import pytest

from emitter.settings import Settings, add_cli_arguments, explain, read_settings

OURS = "MEGATRON_OTEL_"
LENS = "NEMO_LENS_"
ON = {"MEGATRON_OTEL_ENABLED": "1"}


def namespace(**flags: object) -> argparse.Namespace:
    """Parsed flags as Megatron-LM has them: not given is None or False."""
    return argparse.Namespace(
        **{"otel_enabled": False, "otel_service_name": None, "otel_span_groups": None, "lr": 1.0, **flags}
    )


def errors(environ: dict[str, str]) -> list[str]:
    """Lines of the error that an environment deserves."""
    with pytest.raises(ValueError, match=r"^[A-Z_]+: ") as caught:
        read_settings(None, environ)
    return str(caught.value).splitlines()


@pytest.mark.parametrize("arguments", [None, argparse.Namespace(), namespace(), namespace(otel_service_name="")])
def test_without_any_word_telemetry_is_off(arguments: argparse.Namespace | None) -> None:
    """The defaults are those of Megatron-LM, and each says that it is one."""
    settings = read_settings(arguments, {"PATH": "/bin", "RANK": "3"})
    assert settings == Settings(
        enabled=False,
        service_name="megatron-lm",
        rank_strategy="single_rank",
        export_rank=-1,
        export_sample_rate=1.0,
        sampling_strategy="",
        traces_enabled=True,
        metrics_enabled=True,
        logs_enabled=False,
        span_groups="default",
        exporter=("otlp",),
        run_id="",
        user_id="",
    )
    assert settings.sources == {of.name: "default" for of in fields(Settings) if of.name != "sources"}


@pytest.mark.parametrize("prefix", [OURS, LENS])
@pytest.mark.parametrize(
    ("variable", "text", "name", "value"),
    [
        ("ENABLED", "1", "enabled", True),
        ("RANK_STRATEGY", "all_ranks", "rank_strategy", "all_ranks"),
        ("EXPORT_STRATEGY", "my_own", "rank_strategy", "my_own"),
        ("EXPORT_RANK", "-2", "export_rank", -2),
        ("EXPORT_SAMPLE_RATE", "0.25", "export_sample_rate", 0.25),
        ("SAMPLING_STRATEGY", "rank_aware", "sampling_strategy", "rank_aware"),
        ("TRACES_ENABLED", "0", "traces_enabled", False),
        ("METRICS_ENABLED", "no", "metrics_enabled", False),
        ("LOGS_ENABLED", "on", "logs_enabled", True),
        ("SPAN_GROUPS", "per_step,layer", "span_groups", "per_step,layer"),
        ("EXPORTER", "console", "exporter", ("console",)),
    ],
)
def test_each_variable_sets_its_setting(prefix: str, variable: str, text: str, name: str, value: object) -> None:
    """Under either prefix, spaces around it or not; the source is the variable."""
    settings = read_settings(None, {prefix + variable: f" {text} "})
    assert settings == Settings(**{name: value})
    assert settings.sources[name] == prefix + variable


def test_the_run_its_user_and_the_service_have_names_of_their_own() -> None:
    """These variables have no prefix to choose from."""
    environ = {"NEMO_LENS_RUN_ID": "r7", "NEMO_LENS_USER_ID": "team-a", "OTEL_SERVICE_NAME": "pretrain"}
    settings = read_settings(None, environ)
    assert (settings.run_id, settings.user_id, settings.service_name) == ("r7", "team-a", "pretrain")
    assert settings.sources["run_id"] == "NEMO_LENS_RUN_ID"
    assert read_settings(None, {OURS + name: "x" for name in ("RUN_ID", "USER_ID", "SERVICE_NAME")}) == Settings()


def test_the_flag_beats_our_variable_beats_lens_beats_the_default() -> None:
    """One order of precedence for every setting."""
    environ = {LENS + "SPAN_GROUPS": "all"}
    assert read_settings(namespace(), environ).span_groups == "all"
    environ[OURS + "SPAN_GROUPS"] = "per_step"
    assert read_settings(namespace(), environ).span_groups == "per_step"
    settings = read_settings(namespace(otel_span_groups="job"), environ)
    assert (settings.span_groups, settings.sources["span_groups"]) == ("job", "--otel-span-groups")


def test_flags_win_over_their_variables() -> None:
    """What is typed for one run beats what a cluster sets for all."""
    flags = namespace(otel_enabled=True, otel_service_name="mine")
    settings = read_settings(flags, {OURS + "ENABLED": "0", "OTEL_SERVICE_NAME": "theirs"})
    assert (settings.enabled, settings.service_name) == (True, "mine")
    assert settings.sources["enabled"] == "--otel-enabled"
    assert settings.sources["service_name"] == "--otel-service-name"


def test_an_empty_variable_is_not_set() -> None:
    """A script that passes an unset variable on changes nothing; the fallback counts then."""
    environ = {OURS + "EXPORT_RANK": "", LENS + "EXPORT_RANK": "2", OURS + "ENABLED": " ", "NEMO_LENS_RUN_ID": ""}
    assert read_settings(None, environ) == Settings(export_rank=2)


@pytest.mark.parametrize(
    ("environ", "strategy"),
    [
        ({OURS + "RANK_STRATEGY": "a", OURS + "EXPORT_STRATEGY": "b", LENS + "RANK_STRATEGY": "c"}, "a"),
        ({OURS + "EXPORT_STRATEGY": "b", LENS + "RANK_STRATEGY": "c", LENS + "EXPORT_STRATEGY": "d"}, "b"),
        ({LENS + "RANK_STRATEGY": "c", LENS + "EXPORT_STRATEGY": "d"}, "c"),
        ({LENS + "EXPORT_STRATEGY": "d"}, "d"),
    ],
)
def test_the_rank_strategys_two_names_have_an_order(environ: dict[str, str], strategy: str) -> None:
    """Our prefix before Lens', and within a prefix the documented name before the other."""
    assert read_settings(None, environ).rank_strategy == strategy


def test_two_names_that_disagree_are_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    """The first is taken and rank 0 says so; where they agree, or a prefix is overridden, nobody is bothered."""
    quiet = {OURS + "RANK_STRATEGY": "all_ranks", OURS + "EXPORT_STRATEGY": "all_ranks"}
    read_settings(None, {**ON, **quiet, LENS + "EXPORT_STRATEGY": "sampled"})
    loud = {**ON, **quiet, OURS + "EXPORT_STRATEGY": "sampled"}
    read_settings(None, {**loud, "RANK": "1", "WORLD_SIZE": "2"})
    assert caplog.messages == []
    assert read_settings(None, {**loud, "RANK": "0", "WORLD_SIZE": "2"}).rank_strategy == "all_ranks"
    assert caplog.messages == [
        "MEGATRON_OTEL_RANK_STRATEGY: must agree with MEGATRON_OTEL_EXPORT_STRATEGY "
        "(got 'all_ranks' and 'sampled'). 'all_ranks' is taken."
    ]


def test_a_misspelled_variable_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    """A variable of ours that sets nothing is named, with the one that was meant; Lens' are Lens' business."""
    read_settings(None, {**ON, OURS + "RANK_STRATAGY": "all_ranks", OURS + "RUN_ID": "r", LENS + "OTHER": "1"})
    read_settings(None, {**ON, OURS + "COLOR": "red"})
    assert caplog.messages == [
        "MEGATRON_OTEL_RANK_STRATAGY: must be a known setting (got another name). "
        "Did you mean MEGATRON_OTEL_RANK_STRATEGY?",
        "MEGATRON_OTEL_RUN_ID: must be a known setting (got another name). Did you mean NEMO_LENS_RUN_ID?",
        "MEGATRON_OTEL_COLOR: must be a known setting (got another name). Unset it.",
    ]
    assert {record.levelno for record in caplog.records} == {logging.WARNING}


@pytest.mark.parametrize("words", [("1", "true", "YES", "On"), ("0", "False", "no", "OFF")])
def test_a_switch_has_four_words_each_way(words: tuple[str, ...]) -> None:
    """In any case."""
    assert [read_settings(None, {OURS + "ENABLED": word}).enabled for word in words] == [words[0] == "1"] * 4


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("ENABLED", "yep", "must be one of 1, true, yes, on, 0, false, no, off (got 'yep'). Did you mean 'yes'?"),
        ("TRACES_ENABLED", "2", "must be one of 1, true, yes, on, 0, false, no, off (got '2'). Write 1 or 0."),
        ("EXPORT_RANK", "last", "must be a whole number (got 'last'). Write -1 for the last rank."),
        ("EXPORT_SAMPLE_RATE", "25%", "must be a number from 0.0 to 1.0 (got '25%'). Write 0.25 for a quarter."),
        ("EXPORT_SAMPLE_RATE", "1.5", "must be a number from 0.0 to 1.0 (got '1.5'). Write 0.25 for a quarter."),
        ("EXPORT_SAMPLE_RATE", "nan", "must be a number from 0.0 to 1.0 (got 'nan'). Write 0.25 for a quarter."),
        ("EXPORTER", " , ", "must name a destination (got ','). Write otlp, console or scrape."),
    ],
)
def test_a_wrong_value_says_what_is_accepted(variable: str, value: str, message: str) -> None:
    """The error has the variable, the value and what to write instead."""
    assert errors({LENS + variable: value}) == [f"NEMO_LENS_{variable}: {message}"]


def test_a_wrong_destination_says_which_forms_there_are() -> None:
    """With a near miss where there is one, and without the password of a URL."""
    (console, url) = errors({OURS + "EXPORTER": "consol, otlp:ftp://user:pass@host"})
    assert console.startswith("MEGATRON_OTEL_EXPORTER: a destination is scrape, scrape:PORT,")
    assert console.endswith("(got 'consol'). Did you mean 'console'?")
    assert url.startswith("MEGATRON_OTEL_EXPORTER: otlp takes a URL with http, https, grpc or grpcs (got 'ftp://host')")


def test_all_wrong_values_are_told_at_once() -> None:
    """A user who made three mistakes makes three corrections and not three attempts."""
    lines = errors({**ON, OURS + "EXPORT_RANK": "x", LENS + "LOGS_ENABLED": "x", OURS + "EXPORTER": "a,b"})
    assert [line.partition(":")[0] for line in lines] == [
        "MEGATRON_OTEL_EXPORT_RANK",
        "NEMO_LENS_LOGS_ENABLED",
        "MEGATRON_OTEL_EXPORTER",
        "MEGATRON_OTEL_EXPORTER",
    ]


def test_off_is_off(caplog: pytest.LogCaptureFixture) -> None:
    """Switching telemetry off gets a run going, whatever else is wrong with its settings."""
    environ = {OURS + "EXPORT_RANK": "x", OURS + "COLOR": "red", OURS + "EXPORTER": "console"}
    assert errors(environ)
    assert read_settings(None, {**environ, OURS + "ENABLED": "0"}) == Settings(exporter=("console",))
    assert errors({**environ, OURS + "ENABLED": "0ff"})[0].endswith("Did you mean 'off'?")
    assert caplog.messages == []


@pytest.mark.parametrize(
    ("text", "environ", "exporter"),
    [
        ("otlp", {}, ("otlp",)),
        ("otlp, console ,otlp", {}, ("otlp", "console")),
        ("scrape", {}, ("scrape:127.0.0.1:9464",)),
        ("scrape", {"OTEL_EXPORTER_PROMETHEUS_PORT": "9500"}, ("scrape:127.0.0.1:9500",)),
        ("scrape", {"OTEL_EXPORTER_PROMETHEUS_HOST": "0.0.0.0"}, ("scrape:0.0.0.0:9464",)),
        ("scrape", {"OTEL_EXPORTER_PROMETHEUS_HOST": "localhost"}, ("scrape:localhost:9464",)),
        ("scrape", {"OTEL_EXPORTER_PROMETHEUS_HOST": "::1"}, ("scrape:[::1]:9464",)),
        ("scrape:9000", {"OTEL_EXPORTER_PROMETHEUS_PORT": "x"}, ("scrape:9000",)),
        ("scrape:0.0.0.0:0,otlp:http://c:4318", {}, ("scrape:0.0.0.0:0", "otlp:http://c:4318")),
    ],
)
def test_several_destinations_each_in_its_form(text: str, environ: dict[str, str], exporter: tuple[str, ...]) -> None:
    """The exporter is a list; a bare `scrape` listens where the standard variables say, on loopback without."""
    assert read_settings(None, {OURS + "EXPORTER": text, **environ}).exporter == exporter


@pytest.mark.parametrize(
    ("variable", "value"),
    [("PORT", "http"), ("PORT", "65536"), ("PORT", "-1"), ("PORT", "²"), ("HOST", "a/b"), ("HOST", "http://a")],
)
def test_a_wrong_scrape_address_names_its_variable(variable: str, value: str) -> None:
    """The standard variables of the endpoint are judged where the endpoint is asked for."""
    name = f"OTEL_EXPORTER_PROMETHEUS_{variable}"
    (line,) = errors({OURS + "EXPORTER": "scrape", name: value})
    assert line.startswith(f"MEGATRON_OTEL_EXPORTER: {name} must be a ")
    assert f"(got {value!r})" in line
    assert read_settings(None, {name: value}) == Settings()


@pytest.mark.parametrize("wrong", [{"export_sample_rate": 1.1}, {"export_sample_rate": float("nan")}, {"exporter": ()}])
def test_settings_made_by_hand_are_checked_too(wrong: dict[str, object]) -> None:
    """Nonsense is refused where it is made."""
    with pytest.raises(ValueError, match=r"emitter\.settings: "):
        Settings(**wrong)  # type: ignore[arg-type]


def test_the_flags_are_those_of_megatron() -> None:
    """What the parser gives is what `read_settings` takes."""
    parser = argparse.ArgumentParser()
    add_cli_arguments(parser)
    parsed = parser.parse_args(["--otel-enabled", "--otel-service-name", "s", "--otel-span-groups", "all"])
    assert read_settings(parsed, {}) == Settings(enabled=True, service_name="s", span_groups="all")
    assert read_settings(parser.parse_args([]), {}) == Settings()


def test_the_help_names_variable_and_default() -> None:
    """In a group of its own, so that it is found among a thousand flags."""
    parser = argparse.ArgumentParser()
    add_cli_arguments(parser)
    text = " ".join(parser.format_help().split())
    assert "OpenTelemetry:" in text
    for words in (
        "(variable MEGATRON_OTEL_ENABLED; default: off)",
        "(variable OTEL_SERVICE_NAME; default: megatron-lm)",
        "(variable MEGATRON_OTEL_SPAN_GROUPS; default: default)",
    ):
        assert words in text


def test_flags_that_are_there_already_stay() -> None:
    """A parser that has all or some of the flags keeps its own, and gets the rest; twice is as good as once."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--otel-service-name", default="theirs")
    add_cli_arguments(parser)
    add_cli_arguments(parser)
    assert vars(parser.parse_args([])) == {
        "otel_service_name": "theirs",
        "otel_enabled": False,
        "otel_span_groups": None,
    }
    assert parser.format_help().count("OpenTelemetry:") == 1


def test_every_setting_is_explained() -> None:
    """Name, value as a variable would give it, and source; a URL's password is for nobody's eyes."""
    environ = {**ON, OURS + "EXPORTER": "otlp:http://user:hunter2@c:4318/?token=t,scrape:9464,otlp"}
    settings = read_settings(None, environ)
    rows = explain(settings)
    assert [row.name for row in rows] == [of.name for of in fields(Settings) if of.name != "sources"]
    assert ("enabled", "1", "MEGATRON_OTEL_ENABLED") in rows
    assert ("export_rank", "-1", "default") in rows
    assert ("exporter", "otlp:http://c:4318/,scrape:127.0.0.1:9464,otlp", "MEGATRON_OTEL_EXPORTER") in rows
    assert "hunter2" not in repr(rows) + repr(settings)
    assert explain(Settings())[0] == ("enabled", "0", "default")


def test_a_launcher_that_is_wrong_is_nothing_to_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    """A rank that is no number is judged by who needs it: nobody does while telemetry is off."""
    assert not read_settings(None, {"RANK": "abc", OURS + "SPAN_GROUP": "all"}).enabled
    assert [record.message[:24] for record in caplog.records] == [OURS + "SPAN_GROUP"]


def test_the_signals_that_are_on() -> None:
    """OpenTelemetry's words for what is exported, metrics first."""
    assert Settings().signals == ("metrics", "traces")
    assert Settings(traces_enabled=False, logs_enabled=True).signals == ("metrics", "logs")
    assert Settings(traces_enabled=False, metrics_enabled=False).signals == ()
