"""What a run of `Buffer` over a driver printed is read as it was meant."""

from tests.providers.buffers import read_rows


def test_rows_that_were_compared_are_counted() -> None:
    said = "34 rows are right, 12 of them on a GPU, 104 writes over efa\n"
    assert read_rows(said, "a warning\n", 0) == (34, 12, "")


def test_a_run_without_rows_or_writes_has_failed() -> None:
    assert read_rows("12 rows are right, 12 of them on a GPU, 104 writes over efa\n", "", 0)[0] == 0
    without = read_rows("34 rows are right, 0 of them on a GPU, 0 writes over efa\n", "", 0)
    assert without[2] == "Buffer: exit code 0 behind no output"


def test_a_run_that_failed_says_how() -> None:
    errors = "Traceback\nAssertionError: combined: 1 of 8 differ\n(lines inside of uccl_ep are left out; ...)\n"
    assert read_rows("", errors, 1) == (0, 0, "Buffer: exit code 1 behind AssertionError: combined: 1 of 8 differ")
    killed = read_rows("34 rows are right, 12 of them on a GPU, 104 writes over efa\n", "", -11)
    assert killed[2].startswith("Buffer: exit code -11")
