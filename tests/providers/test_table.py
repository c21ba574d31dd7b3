"""The table shows failures, refusals and what is missing."""

from tests.providers.table import Row, read_row, render

_OUTPUT = "ok      provider_a\nFAILED  provider_b\n        cases.cpp:9: nothing arrived\n1 passed, 1 failed\n"


def test_a_failure_is_read_with_its_reason() -> None:
    row = read_row("efa", "65.0", _OUTPUT, 1)
    assert row == Row("efa", "65.0", "", 1, ["provider_b: cases.cpp:9: nothing arrived"])
    assert "FAILED efa 65.0 provider_b: cases.cpp:9" in render([row], [])


def test_a_program_that_was_killed_has_failed() -> None:
    assert read_row("efa", "65.0", "ok      provider_a\n", -14).failed == ["exit code -14 behind ok      provider_a"]
    assert read_row("efa", "65.0", "", -11).failed == ["exit code -11 behind no output"]


def test_a_refusal_is_said_and_no_failure() -> None:
    row = read_row("efa", "44.0", "refused: too old\nok      provider_says\n", 0)
    assert row == Row("efa", "44.0", "too old")
    assert "too old" in render([row], [])
    assert read_row("efa", "44.0", "refused: too old\n", 1).failed


def test_what_was_broken_on_purpose_is_told_by_rule() -> None:
    row = read_row("efa", "65.0", "judged: zero bytes with key 0: found (local key)\nok      provider_rule_z\n", 0)
    assert row.judged == {"zero bytes with key 0": "found (local key)"}
    text = render([row, Row("mlx5", "65.0", judged={"zero bytes with key 0": "no rule here"})], [])
    assert "broken on purpose: zero bytes with key 0\n  efa        65.0         found (local key)\n  mlx5 " in text


def test_rows_of_a_buffer_have_their_column() -> None:
    row = Row("efa", "65.0", "", 33, [], 34, 12)
    assert "efa        65.0             33      0           34       12" in render([row], [])


def test_what_is_missing_stands_at_the_end() -> None:
    assert (
        render([], ["rdma-core of sid: no network"]).splitlines()[-1]
        == "NOT RUN, SKIPPED: rdma-core of sid: no network"
    )
