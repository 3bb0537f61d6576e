"""Answers of the simulated provider in virtual time. `test_provider_http` covers the same rules over HTTP."""

from __future__ import annotations

import random
import statistics
from typing import Any

import pytest

from agentos.testing import (
    Answer,
    Concurrency,
    DailyQuota,
    FakeClock,
    FixedWindow,
    Latency,
    Scripted,
    SimulatedProvider,
    SlidingWindow,
    TokenBucket,
    TokensPerMinute,
)


def provider(*keys: str, **options: Any) -> SimulatedProvider:
    return SimulatedProvider(keys or ("k1", "k2"), **options)


def statuses(provider: SimulatedProvider, key: str, number: int, now: float = 0.0) -> list[int]:
    return [provider.ask(key, now=now).status for _ in range(number)]


# --- limits ---------------------------------------------------------------------------------------------------------


def test_each_key_has_its_own_bucket() -> None:
    sim = provider(requests_per_second=2.0, burst=2)
    assert statuses(sim, "k1", 3) == [200, 200, 429]
    assert statuses(sim, "k2", 3) == [200, 200, 429]
    assert statuses(sim, "k1", 2, now=0.5) == [200, 429]
    assert (sim.answered, sim.limited) == (5, 3)
    assert sim.counts["k1"] == {200: 3, 429: 2}


def test_keys_of_one_group_share_its_limits() -> None:
    sim = provider("k1", "k2", "k3", limits=[FixedWindow(2)], groups={"k1": "org", "k2": "org"})
    assert [sim.ask(key, now=0.0).status for key in ("k1", "k2", "k1", "k2", "k3")] == [200, 200, 429, 429, 200]
    assert [entry.group for entry in sim.log] == ["org"] * 4 + ["k3"]


def test_groups_and_single_keys_have_their_own_limits() -> None:
    sim = provider("k1", "k2", limits={"k1": [FixedWindow(1)]}, key_limits=[FixedWindow(3)])
    assert statuses(sim, "k1", 2) == [200, 429]
    assert statuses(sim, "k2", 4) == [200, 200, 200, 429]


def test_refused_request_takes_from_no_rule() -> None:
    sim = provider("k1", limits=[FixedWindow(2, 60), FixedWindow(1, 10)])
    assert statuses(sim, "k1", 5) == [200, 429, 429, 429, 429]
    assert statuses(sim, "k1", 2, now=10.0) == [200, 429]
    answer = sim.ask("k1", now=20.0)
    assert (answer.status, answer.reason, answer.headers["retry-after"]) == (429, "requests per minute", "40")


def test_refused_request_counts_only_with_counts_refused() -> None:
    lenient = provider("k1", limits=[SlidingWindow(1, 10)])
    strict = provider("k1", limits=[SlidingWindow(1, 10)], counts_refused=True)
    assert [lenient.ask("k1", now=at).status for at in (0.0, 5.0, 10.0)] == [200, 429, 200]
    assert [strict.ask("k1", now=at).status for at in (0.0, 5.0, 10.0, 20.0)] == [200, 429, 429, 200]


def test_per_model_counts_each_model_separately() -> None:
    sim = provider("k1", limits=[FixedWindow(1)], per_model=True)
    assert [sim.ask("k1", now=0.0, model=model).status for model in ("a", "b", "a")] == [200, 200, 429]
    combined = provider("k1", limits=[FixedWindow(1)])
    assert [combined.ask("k1", now=0.0, model=model).status for model in ("a", "b")] == [200, 429]


def test_concurrency_is_counted_from_ask_to_finish() -> None:
    sim = provider("k1", "k2", limits=[Concurrency(1)], groups={"k1": "org", "k2": "org"})
    first = sim.ask("k1", now=0.0)
    assert sim.ask("k2", now=0.0).reason == "concurrent requests"
    sim.finish(first, now=1.0)
    assert sim.ask("k2", now=1.0).status == 200
    assert sim.peak_concurrency == {"org": 1}


def test_finish_corrects_reserved_tokens_by_used_ones() -> None:
    sim = provider("k1", limits=[TokensPerMinute(1000)])
    answer = sim.ask("k1", now=0.0, tokens=900)
    assert sim.ask("k1", now=0.0, tokens=900).status == 429
    sim.finish(answer, now=0.0, tokens=100)
    assert sim.ask("k1", now=0.0, tokens=900).status == 200


def test_too_large_request_is_refused_without_a_hint() -> None:
    answer = provider("k1", limits=[TokensPerMinute(1000)]).ask("k1", now=0.0, tokens=1001)
    assert answer.status == 429
    assert "retry-after" not in answer.headers
    assert answer.body["error"]["message"].startswith("Request too large")


def test_log_has_time_and_reason_of_every_request() -> None:
    sim = provider("k1", requests_per_second=1.0, burst=1)
    sim.ask("k1", now=1.0, tokens=7, model="m")
    sim.ask("k1", now=1.5)
    sim.ask("stranger", now=2.0)
    assert [(entry.at, entry.key, entry.group, entry.status, entry.reason) for entry in sim.log] == [
        (1.0, "k1", "k1", 200, "ok"),
        (1.5, "k1", "k1", 429, "requests per minute"),
        (2.0, "stranger", "stranger", 401, "dead"),
    ]
    assert sim.stats()["counts"] == {"k1": {200: 1, 429: 1}, "stranger": {401: 1}}
    assert (sim.stats()["answered"], sim.stats()["limited"]) == (1, 1)


def test_clock_replaces_explicit_instants() -> None:
    clock = FakeClock(epoch=86_399.0)
    sim = provider("k1", limits=[DailyQuota(1)], clock=clock)
    assert [sim.ask("k1").status, sim.ask("k1").status] == [200, 429]
    clock.advance(1)
    assert sim.ask("k1").status == 200
    assert [entry.at for entry in sim.log] == [1000.0, 1000.0, 1001.0]
    instants = iter([0.0, 59.0, 60.0])
    plain = provider("k1", limits=[FixedWindow(1)], clock=lambda: next(instants, 60.0))
    assert [plain.ask("k1").status, plain.ask("k1").status] == [200, 200]


@pytest.mark.parametrize(
    ("options", "requests", "seconds"),
    [
        ({"requests_per_second": 2.0, "burst": 5}, 60, 12.5),  # two keys: 30 each, 5 at once
        ({"requests_per_second": 2.0, "burst": 5}, 7, 0.0),
        ({"limits": [TokenBucket(2.0, 5)], "groups": {"k1": "org", "k2": "org"}}, 60, 27.5),
        ({"limits": [FixedWindow(10)]}, 41, 120.0),
        ({"limits": [SlidingWindow(10), Concurrency(1)]}, 41, 120.0),
        ({"limits": [FixedWindow(100)], "key_limits": [SlidingWindow(1, 1.0)]}, 4, 1.0),
        ({"limits": {"k1": [TokenBucket(1.0, 1)], "k2": [TokenBucket(3.0, 1)]}}, 8, 1.666667),
        ({"limits": [FixedWindow(10)]}, 0, 0.0),
    ],
)
def test_legal_minimum_is_the_shortest_allowed_time(options: dict[str, Any], requests: int, seconds: float) -> None:
    assert provider(**options).legal_minimum(requests, now=0.0) == pytest.approx(seconds, abs=1e-5)


def test_legal_minimum_includes_tokens() -> None:
    sim = provider("k1", limits=[TokensPerMinute(600)])
    assert sim.legal_minimum(7, tokens=100, now=0.0) == pytest.approx(10.0)
    assert sim.legal_minimum(1, tokens=601, now=0.0) == float("inf")


# --- faults ----------------------------------------------------------------------------------------------------------


def test_overloaded_provider_refuses_every_key() -> None:
    sim = provider(overload=[(5, 10), (20, 21)])
    assert [sim.ask("k1", now=100.0 + at).status for at in (0, 4.9, 5, 9.9, 10, 20.5, 21)] == [
        200, 200, 503, 503, 200, 503, 200,
    ]  # fmt: skip
    sim.overload_for(3, now=200.0)
    assert [sim.ask("k2", now=at).status for at in (202.9, 203.0)] == [503, 200]
    assert sim.log[-2].reason == "overloaded"


def test_dead_key_is_refused_until_revived() -> None:
    sim = provider(dead={"k1"})
    assert sim.ask("k1", now=0.0).status == 401
    sim.revive("k1")
    assert sim.ask("k1", now=0.0).status == 200
    sim.kill("k1")
    assert sim.ask("k1", now=0.0).body["error"]["code"] == "invalid_api_key"
    assert sim.ask("k2", now=0.0).status == 200


def test_exhausted_quota_applies_to_the_whole_group() -> None:
    sim = provider("k1", "k2", "k3", groups={"k1": "org", "k2": "org"})
    sim.exhaust("k1")
    assert [sim.ask(key, now=0.0).reason for key in ("k1", "k2", "k3")] == ["quota", "quota", "ok"]
    sim.exhaust("k1", status=402)
    assert sim.ask("k2", now=0.0).status == 402
    sim.refill("k2")
    assert sim.ask("k1", now=0.0).status == 200
    assert provider(out_of_quota={"k1"}).ask("k1", now=0.0).body["error"]["code"] == "insufficient_quota"


def test_scripted_answers_ignore_limits_and_cost_nothing() -> None:
    sim = provider("k1", "k2", limits=[FixedWindow(1)])
    sim.script([429, 529, 200, "quota", Scripted("limit", status=418)], retry_after=0.25)
    answers = [sim.ask("k1", now=0.0) for _ in range(7)]
    assert [answer.status for answer in answers] == [429, 529, 200, 429, 418, 200, 429]
    assert [answer.headers.get("retry-after") for answer in answers[:4]] == ["0.25", "0.25", None, None]
    assert answers[0].reason == "scripted limit"
    assert answers[3].body["error"]["code"] == "insufficient_quota"
    with pytest.raises(ValueError, match="none of limit, quota"):
        sim.script(["qouta"])


def test_script_for_one_key_spares_others() -> None:
    sim = provider()
    sim.script([401], key="k1")
    assert [sim.ask(key, now=0.0).status for key in ("k2", "k1", "k1")] == [200, 401, 200]


def test_scripted_stream_breaks_after_status_200() -> None:
    sim = provider()
    sim.script([Scripted(breaks_with="overloaded"), Scripted(drops=True)])
    answer = sim.ask("k1", now=0.0, style="anthropic")
    assert answer.status == 200
    assert answer.breaks_with is not None
    assert answer.breaks_with["error"]["type"] == "overloaded_error"
    assert sim.ask("k1", now=0.0).drops


def test_reset_restores_a_new_provider() -> None:
    sim = provider("k1", "k2", burst=1, dead={"k2"})
    statuses(sim, "k1", 2)
    sim.exhaust("k1")
    sim.overload_for(10, now=0.0)
    sim.script([500])
    sim.reset()
    assert (sim.answered, sim.limited, len(sim.log)) == (0, 0, 0)
    assert statuses(sim, "k1", 2) == [200, 429]
    assert statuses(sim, "k2", 1) == [200]


# --- styles ----------------------------------------------------------------------------------------------------------


def test_openai_headers_are_on_every_answer() -> None:
    sim = provider("k1", limits=[TokenBucket(0.5, 3), TokensPerMinute(6000)])
    answer = sim.ask("k1", now=0.0, tokens=100)
    assert answer.headers == {
        "x-ratelimit-limit-requests": "30",
        "x-ratelimit-remaining-requests": "2",
        "x-ratelimit-reset-requests": "2s",
        "x-ratelimit-limit-tokens": "6000",
        "x-ratelimit-remaining-tokens": "5900",
        "x-ratelimit-reset-tokens": "1s",
    }
    statuses(sim, "k1", 2)
    refusal = sim.ask("k1", now=0.5)
    assert refusal.headers["x-ratelimit-remaining-requests"] == "0"
    assert refusal.headers["x-ratelimit-reset-requests"] == "5.5s"
    assert refusal.headers["retry-after"] == "1.5"
    assert refusal.body["error"]["code"] == "rate_limit_exceeded"
    assert refusal.body["error"]["message"].endswith("Please try again in 1.5s.")


def test_headers_can_be_turned_off() -> None:
    sim = provider("k1", burst=1, headers="off")
    assert sim.ask("k1", now=0.0).headers == {}
    assert sim.ask("k1", now=0.0).headers == {"retry-after": "0.5"}


@pytest.mark.parametrize(
    ("form", "headers"),
    [
        ("seconds", {"retry-after": "7.334"}),
        ("whole", {"retry-after": "8"}),
        ("ms", {"retry-after-ms": "7334"}),
        ("date", {"retry-after": "Thu, 01 Jan 1970 00:00:08 GMT"}),
        (None, {}),
    ],
)
def test_retry_after_is_never_too_short_in_any_form(form: Any, headers: dict[str, str]) -> None:
    sim = provider("k1", requests_per_second=3 / 22, burst=1, headers="off", retry_after=form)
    sim.ask("k1", now=0.0)
    assert sim.ask("k1", now=0.0).headers == headers


def test_anthropic_headers_and_error_bodies() -> None:
    clock = FakeClock(epoch=1_794_772_800.0)
    sim = provider("k1", limits=[TokenBucket(0.5, 1)], style="anthropic", clock=clock)
    assert sim.ask("k1").headers == {
        "anthropic-ratelimit-requests-limit": "30",
        "anthropic-ratelimit-requests-remaining": "0",
        "anthropic-ratelimit-requests-reset": "2026-11-15T20:00:02Z",
    }
    assert sim.ask("k1").body["error"]["type"] == "rate_limit_error"
    sim.exhaust("k1")
    answer = sim.ask("k1")
    assert answer.body["error"]["details"] == {"error_code": "enforced_spend_limit_reached"}
    assert "retry-after" not in answer.headers
    sim.kill("k1")
    assert sim.ask("k1").status == 401
    sim.overload_for(1)
    assert (sim.ask("k1").status, sim.ask("k1").body["error"]["type"]) == (529, "overloaded_error")


def gemini_details(answer: Answer) -> dict[str, Any]:
    return {detail["@type"].rpartition(".")[2]: detail for detail in answer.body["error"]["details"]}


def test_gemini_reports_limits_in_its_body() -> None:
    sim = provider("k1", limits=[TokenBucket(0.4, 1), DailyQuota(2)], style="gemini")
    assert sim.ask("k1", now=0.0).headers == {}
    refusal = sim.ask("k1", now=0.0)
    assert (refusal.status, refusal.headers) == (429, {})
    details = gemini_details(refusal)
    assert details["RetryInfo"]["retryDelay"] == "2.5s"
    assert "PerMinute" in details["QuotaFailure"]["violations"][0]["quotaId"]
    sim.ask("k1", now=10.0)
    assert "PerDay" in gemini_details(sim.ask("k1", now=20.0))["QuotaFailure"]["violations"][0]["quotaId"]


def test_gemini_reports_short_waits_and_bad_keys_as_400() -> None:
    sim = provider("k1", "k2", style="gemini", out_of_quota={"k1"}, dead={"k2"})
    details = gemini_details(sim.ask("k1", now=0.0))
    assert "PerDay" in details["QuotaFailure"]["violations"][0]["quotaId"]
    assert details["RetryInfo"]["retryDelay"] == "20s"
    answer = sim.ask("k2", now=0.0)
    assert answer.status == 400
    assert gemini_details(answer)["ErrorInfo"]["reason"] == "API_KEY_INVALID"
    sim.exhaust("k1", status=402)
    assert sim.ask("k1", now=0.0).status == 402
    sim.script([503])
    assert sim.ask("k1", now=0.0).body == {
        "error": {"code": 503, "message": "The model is overloaded.", "status": "UNAVAILABLE"}
    }


def test_style_can_be_chosen_per_request() -> None:
    sim = provider(dead={"k1"})
    assert sim.ask("k1", now=0.0, style="gemini").status == 400
    assert sim.ask("k1", now=0.0, style="anthropic").body["type"] == "error"


# --- latency ---------------------------------------------------------------------------------------------------------


def test_latency_is_drawn_from_a_seeded_source() -> None:
    def draw_latencies(seed: int) -> list[float]:
        sim = provider("k1", limits=[], latency=Latency.lognormal(0.2, 0.5), seed=seed)
        return [sim.ask("k1", now=0.0).latency for _ in range(400)]

    assert draw_latencies(1) == draw_latencies(1) != draw_latencies(2)
    assert statistics.median(draw_latencies(1)) == pytest.approx(0.2, rel=0.15)
    assert max(draw_latencies(1)) > 0.4


def test_latency_accepts_number_range_or_function() -> None:
    assert provider(latency=0.3).ask("k1", now=0.0).latency == 0.3
    assert 0.1 <= provider(latency=Latency.uniform(0.1, 0.2)).ask("k1", now=0.0).latency <= 0.2
    assert provider(latency=lambda chance: 7.0).ask("k1", now=0.0).latency == 7.0
    assert Latency.fixed(0.1)(random.Random(0)) == 0.1


def test_refusal_has_no_latency() -> None:
    assert provider(latency=5.0, dead={"k1"}).ask("k1", now=0.0).latency == 0.0


def test_provider_has_no_address_before_serving() -> None:
    with pytest.raises(RuntimeError, match="only inside its `with` block"):
        _ = provider().url
