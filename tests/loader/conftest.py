"""Let every Loader of these tests that reads directly do so for half of the rows, however much memory there is."""

import pytest

from decodeonce.loader import choose_reader


@pytest.fixture(autouse=True)
def half_of_the_rows_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choose_reader, "kept_share", lambda nbytes, memory: 0.5)
