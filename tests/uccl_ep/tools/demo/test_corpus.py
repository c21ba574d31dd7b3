"""The text: same bytes everywhere, files apart between training and validation, readable refusals."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from uccl_ep.tools.demo.corpus import NoText, load_corpus, sample, source_files


def tree(root: Path, files: int) -> None:
    for i in range(files):
        folder = root / ("pkg" if i % 2 else ".")
        folder.mkdir(exist_ok=True)
        (folder / f"m{i:03d}.py").write_bytes(bytes([65 + i % 26]) * 1000)
    for skipped in ("site-packages", "test", "__pycache__"):
        (root / skipped).mkdir()
        (root / skipped / "a.py").write_bytes(b"!" * 1000)
    (root / "notes.txt").write_bytes(b"!" * 1000)


def test_this_pythons_own_library_is_enough_and_is_read_alike_twice() -> None:
    first, second = load_corpus(), load_corpus()
    assert first.digest() == second.digest()
    assert first.train.size + first.validation.size == 2_000_000
    assert first.validation.size > 50_000
    assert b"import " in first.train.tobytes()


def test_files_come_in_name_order_without_tests_packages_or_caches(tmp_path: Path) -> None:
    tree(tmp_path, 30)
    names = [path.relative_to(tmp_path).as_posix() for path in source_files(tmp_path)]
    assert names == sorted(names)
    assert len(names) == 30


def test_every_tenth_file_is_kept_for_validation_and_the_budget_holds(tmp_path: Path) -> None:
    tree(tmp_path, 60)
    corpus = load_corpus(tmp_path, budget_bytes=55_500)
    assert corpus.train.size == 50_500  # 55.5 files, of which files 10, 20, ... 50 are kept out
    assert corpus.validation.size == 5_000
    assert corpus.files == 56
    order = source_files(tmp_path)
    assert corpus.validation.tobytes()[:1000] == order[9].read_bytes()


def test_too_little_text_is_refused(tmp_path: Path) -> None:
    tree(tmp_path, 5)
    with pytest.raises(NoText, match="5000 bytes for training and 0 for validation in 5 files"):
        load_corpus(tmp_path)


def test_targets_are_the_next_bytes_and_batches_depend_on_the_key_alone() -> None:
    text = np.arange(5000, dtype=np.uint32).astype(np.uint8)
    one, again, other = (sample(text, 3, 50, key) for key in ((1, 2, 3), (1, 2, 3), (1, 2, 4)))
    assert one.tokens.shape == one.targets.shape == (3, 50)
    assert np.array_equal(one.tokens[:, 1:], one.targets[:, :-1])
    assert np.array_equal((one.tokens + 1) % 256, one.targets)
    assert np.array_equal(one.tokens, again.tokens)
    assert not np.array_equal(one.tokens, other.tokens)


def test_the_last_window_of_the_text_can_be_drawn() -> None:
    text = np.arange(12, dtype=np.uint8)
    starts = {int(sample(text, 1, 10, (key,)).tokens[0, 0]) for key in range(40)}
    assert starts == {0, 1}
