"""A URL is refused wherever a store's folder is expected, with the command that copies the store from there."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import decodeonce
from decodeonce import StoreError, open_store
from decodeonce.store import add_column, stage_store, verify_store
from tests.command import assert_fails, prep
from tests.packages import needs_torch
from tests.stores import make_store, random_images

URL = "s3://bucket/train.store"
REFUSAL = (
    f"{URL}: a URL, expected a local folder; to use a store that is there, stage it first: `prep stage {URL} FOLDER`"
)


@pytest.mark.parametrize(
    "read",
    [
        open_store,
        verify_store,
        lambda url: add_column(url, "score", np.zeros(4)),
        pytest.param(lambda url: decodeonce.Loader(url, batch_size=4), marks=needs_torch),
        pytest.param(lambda url: decodeonce.StoreDataset(url), marks=needs_torch),
    ],
    ids=["open_store", "verify_store", "add_column", "Loader", "StoreDataset"],
)
def test_url_of_a_store_is_refused(read: Callable[[object], object]) -> None:
    for url in (URL, Path(URL)):
        with pytest.raises(StoreError) as failed:
            read(url)
        assert str(failed.value) == REFUSAL


def test_commands_and_parts_refuse_the_url_of_a_store(tmp_path: Path) -> None:
    for command in ("info", "show", "status", "work", "repair --from tree"):
        assert_fails(prep(*command.split(), URL, cwd=tmp_path), 1, REFUSAL)
    assert_fails(prep("convert", URL, "out", cwd=tmp_path), 1, REFUSAL)
    assert not list(tmp_path.iterdir())
    store = open_store(make_store(tmp_path / "s", random_images(4)))
    with pytest.raises(StoreError, match="a URL, expected a local folder"):
        stage_store(store, URL, rows=range(4))


def test_refusal_has_no_secrets() -> None:
    for url in ("https://me:hush@host/a?signature=hush", "az://box/a", "file:///a"):
        with pytest.raises(StoreError, match="a URL, expected a local folder") as failed:
            open_store(url)
        assert "hush" not in str(failed.value)
