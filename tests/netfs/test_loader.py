"""Loading from a network file system whose server or client is killed in the middle of an epoch."""

import subprocess
import sys

import pytest

from tests.netfs.commands import run
from tests.netfs.gluster import Gluster
from tests.stores import make_store, random_images

pytestmark = pytest.mark.release

# Run epochs until an error. Print a line at the first batch, and at the end the error and the files still open.
EPOCHS = """
import os, sys
from decodeonce import DecodeonceError, Loader

store, reader = sys.argv[1:]
loader = Loader(store, batch_size=64, reader=reader)
try:
    with loader:
        while True:
            for number, batch in enumerate(loader):
                if number == 0:
                    print("started", flush=True)
except DecodeonceError as error:
    print(f"{type(error).__name__}: {error}")
links = [f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd")]
mapped = open("/proc/self/maps").read()
files = {os.readlink(link) for link in links if os.path.islink(link)}
print([file for file in files if file.startswith(store) and file not in mapped])
"""


@pytest.mark.parametrize("dying", ["brick", "client"])
@pytest.mark.parametrize("reader", ["pread", "mmap"])
def test_killed_server_during_an_epoch_is_one_error_that_names_a_file(volume: Gluster, reader: str, dying: str) -> None:
    images = random_images(1024, shape=(256, 256, 3))
    make_store(volume.nodes[0].mount / "store", images, shard_rows=64)
    node = volume.nodes[1]
    node.stop()  # empties its cache
    volume.start()
    store = str(node.mount / "store")
    process = subprocess.Popen([sys.executable, "-c", EPOCHS, store, reader], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "started\n"
    (volume.bricks[0] if dying == "brick" else node).kill()
    *_, message, open_files = process.communicate(timeout=60)[0].splitlines()
    assert process.returncode == 0
    assert message.startswith(f"Stopped: {store}/"), message
    assert message.endswith("; the file server may be down; run the same command again")
    assert open_files == "[]"


def test_shard_on_an_unreachable_server_is_not_reported_as_damaged(volume: Gluster) -> None:
    store = make_store(volume.nodes[0].mount / "store", random_images(32, shape=(8, 8, 3)), shard_rows=2)
    volume.bricks[0].kill()
    ((code, output),) = run(["info", str(store)])
    assert code in (1, 75)
    assert "server may be" in output
