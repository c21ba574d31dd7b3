"""`uccl-ep explain`: from files to words or JSON; what is no record is one red line."""

from __future__ import annotations

import json
import os
import random
import socket
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgpack
import pytest
from typer.testing import CliRunner

from tests.uccl_ep.recorder.records import WALL, bereaved, timed_out
from uccl_ep import InvalidArgument
from uccl_ep.cli import app
from uccl_ep.recorder import journal
from uccl_ep.recorder.find import read_all
from uccl_ep.recorder.record import SUFFIX, pack, write
from uccl_ep.recorder.recorder import default_folder
from uccl_ep.tools.explain.chrome import trace_of
from uccl_ep.tools.explain.story import read_story

runner = CliRunner()


@pytest.mark.parametrize("command", [["explain"], ["trace", "--out", "trace.json"]])
def test_explain_and_trace_load_no_torch(tmp_path: Path, command: list[str]) -> None:
    write(bereaved(0, 2), tmp_path)
    program = (
        "import sys\n"
        "from uccl_ep.cli import main\n"
        f"sys.argv = ['uccl-ep', *{command!r}, {str(tmp_path)!r}]\n"
        "try:\n    main()\n"
        "except SystemExit as ended:\n    sys.exit(ended.code or int('torch' in sys.modules))\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=50)
    assert ended.returncode == 0, ended.stdout + ended.stderr


@pytest.fixture(autouse=True)
def _own_journals(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of other jobs on this machine would be read too."""
    monkeypatch.setattr(journal, "MEMORY", tmp_path_factory.mktemp("memory"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for rank in (0, 1, 3):
        write(bereaved(rank, 2), tmp_path)
    return tmp_path


def test_recorder_explain_tells_the_story(folder: Path) -> None:
    done = runner.invoke(app, ["explain", str(folder)])
    assert done.exit_code == 0 and "Rank 2 was lost." in done.output
    one = runner.invoke(app, ["explain", str(folder / "1234abcd-rank0.uccl-ep")])
    assert one.exit_code == 0 and "Rank 2 was lost." in one.output and "ranks 1, 2 and 3" in one.output


def test_recorder_explain_as_json(folder: Path) -> None:
    done = runner.invoke(app, ["explain", str(folder), "--json"])
    story = json.loads(done.output)
    assert done.exit_code == 0 and story["root_cause"] == 2
    assert [(loss["rank"], loss["by"]) for loss in story["lost"]] == [(2, [0, 1, 3])]
    assert story["story"][0] == "Rank 2 was lost."
    assert story["what_to_do"][0].startswith("Look at the last lines of rank 2")


def test_recorder_explain_without_an_argument_takes_the_newest_job(variables: Any, tmp_path: Path) -> None:
    variables(FLIGHT_RECORDER=tmp_path)
    for rank in (0, 1, 3):
        write(bereaved(rank, 2), tmp_path)
        write(timed_out(rank, 1, session=0x77, wall_s=WALL - 60), tmp_path)
    done = runner.invoke(app, ["explain"])
    assert done.exit_code == 0 and f"the newest job of those in {tmp_path}" in done.output
    assert "job 1234abcd" in done.output and "Rank 2 was lost." in done.output and "What to do" in done.output
    assert json.loads(runner.invoke(app, ["explain", "--json"]).output)["job"] == "1234abcd"


def test_recorder_explain_without_an_argument_looks_where_ranks_write(
    variables: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    variables(FLIGHT_RECORDER="")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    done = runner.invoke(app, ["explain"])
    assert isinstance(done.exception, InvalidArgument) and str(tmp_path / f"uccl-ep-{os.geteuid()}") in str(
        done.exception
    )
    assert list(tmp_path.iterdir()) == [], "looking makes no folder"
    write(bereaved(0, 2), default_folder())
    assert "Rank 2 was lost." in runner.invoke(app, ["explain"]).output


def test_recorder_explain_refuses_what_is_no_record(tmp_path: Path) -> None:
    for place in (tmp_path, tmp_path / "absent"):
        done = runner.invoke(app, ["explain", str(place)])
        assert done.exit_code != 0 and isinstance(done.exception, InvalidArgument) and str(place) in str(done.exception)


def litter(folder: Path, held: ExitStack) -> dict[str, str]:
    """Whatever else may have a record's name: file name to why it is skipped."""
    whole = pack(bereaved(0, 2))

    def file(name: str, data: bytes = b"") -> Path:
        path = folder / f"{name}{SUFFIX}"
        path.write_bytes(data)
        return path

    file("empty")
    file("truncated", whole[:-7])
    file("foreign", b"\x7fELF" * 99)
    file("deep", b"\x91" * 100_000)
    file("giant", b"\xdd\xff\xff\xff\xff")
    file("other", pack(bereaved(1, 2, num_ranks=4, hostnames=["\x1b[2Jbeta"] * 4)))
    os.truncate(file("huge"), 8 << 30)
    os.mkfifo(folder / f"fifo{SUFFIX}")
    (folder / f"zero{SUFFIX}").symlink_to("/dev/zero")
    (folder / f"nowhere{SUFFIX}").symlink_to("nowhere")
    (folder / f"good{SUFFIX}").symlink_to(folder / "1234abcd-rank0.uccl-ep")
    (folder / f"folder{SUFFIX}").mkdir()
    server = held.enter_context(socket.socket(socket.AF_UNIX))
    server.bind(str(folder / f"socket{SUFFIX}"))
    if os.geteuid() == 0:
        os.mknod(folder / f"device{SUFFIX}", 0o600 | 0o020000, os.makedev(1, 5))
    else:
        file("denied", whole).chmod(0)
    skipped = {
        "empty": "no flight record",
        "truncated": "no flight record",
        "foreign": "no flight record",
        "deep": "no flight record",
        "giant": "no flight record",
        "other": "another group",
        "huge": "8589934592 bytes",
        "fifo": "a pipe",
        "zero": "a link",
        "nowhere": "a link",
        "good": "a link",
        "folder": "a folder",
        "socket": "a socket",
        "device": "a device",
        "denied": "Permission denied",
    }
    return {name: why for name, why in skipped.items() if os.path.lexists(folder / f"{name}{SUFFIX}")}


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """As a process, which a pipe's open would stop for good."""
    command = [sys.executable, "-m", "uccl_ep", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def test_recorder_explain_and_trace_tell_what_good_records_say(folder: Path) -> None:
    with ExitStack() as held:
        skipped = litter(folder, held)
        done = run("explain", "--json", str(folder))
        traced = run("trace", str(folder), "-o", str(folder / "trace.json"))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["story"][0] == "Rank 2 was lost."
    assert traced.returncode == 0 and "3 rank(s)" in traced.stdout
    for said in (done.stderr.splitlines(), traced.stderr.splitlines()):
        assert len(said) == len(skipped)
        for name, why in skipped.items():
            assert sum(f"{name}{SUFFIX}" in line and why in line and "skipped" in line for line in said) == 1, name


def test_recorder_explain_with_nothing_but_litter(tmp_path: Path) -> None:
    with ExitStack() as held:
        skipped = litter(tmp_path, held)
        (tmp_path / f"other{SUFFIX}").unlink()
        done = run("explain", str(tmp_path))
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == len(skipped) and "no flight record" in done.stderr.splitlines()[-1]


def test_recorder_explain_shows_no_terminal_codes(tmp_path: Path) -> None:
    write(bereaved(0, 1, hostnames=["\x1b[2Jbeta"] * 4, host="\x1b]0;x\a"), tmp_path)
    (tmp_path / f"\x1b[2J{SUFFIX}").write_bytes(b"")
    done = run("explain", str(tmp_path))
    assert done.returncode == 0 and "beta" in done.stdout
    assert "\x1b" not in done.stdout + done.stderr and "\a" not in done.stdout


def test_recorder_story_of_damaged_values(tmp_path: Path) -> None:
    """A value that a story would stumble over is found when the record is read: the others' story is told."""
    generator = random.Random(11)
    odd = [0, -1, 3, 99, 1 << 63, (1 << 64) - 1, -(1 << 63), 0.5, float("nan"), 1e300, "", "x", b"", None, True, [], {}]

    def spoil(value: Any) -> Any:
        if isinstance(value, (dict, list)) and value and generator.random() < 0.8:
            at = generator.choice(list(value) if isinstance(value, dict) else range(len(value)))
            if generator.random() < 0.1:
                del value[at]
            else:
                value[at] = spoil(value[at])
            return value
        if isinstance(value, bytes) and value and generator.random() < 0.8:
            return generator.randbytes(len(value))
        return generator.choice(odd)

    write(bereaved(0, 2), tmp_path)
    told = 0
    for _ in range(600):
        made = generator.choice([bereaved, timed_out])(1, 2)
        values = spoil(msgpack.unpackb(pack(made), raw=False))
        (tmp_path / f"spoiled{SUFFIX}").write_bytes(msgpack.packb(values))
        records = read_all([tmp_path])
        story = read_story(records).plain()
        json.dumps(trace_of(records))
        assert story["story"]
        told += any(record.rank == 0 and record.pid == 1000 for record in records)
    assert told > 400  # unless the spoiled one is of a later job, or of this rank
