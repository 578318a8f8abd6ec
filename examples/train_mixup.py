"""Train with a column as a weight for each image, MixUp or CutMix, growing images, and resuming on any number of GPUs.

Run it like the script of docs/how-to/multi-gpu-and-resume.md. The store needs a column of weights:

    prep column add train.store weight weight.npy
"""

import signal

if __name__ == "__main__":  # before the imports, which take seconds: Ctrl-C ends this without a traceback
    signal.signal(signal.SIGINT, signal.SIG_DFL)

import os

import torch
import torch.distributed as dist
from torch import nn
from tqdm import tqdm

from decodeonce import Loader, find_rank, open_store
from decodeonce.augment import Augment, CutMix, MixUp, Normalize, OneOf, RandomFlip, RandomResizedCrop, ramp

EPOCHS, EVERY, CHECKPOINT = 16, 100, "checkpoint.pt"

place = find_rank()
device = torch.device("cpu")
if torch.accelerator.is_available():
    local = int(os.environ.get("LOCAL_RANK", place.rank))
    torch.accelerator.set_device_index(local % torch.accelerator.device_count())
    device = torch.accelerator.current_accelerator() or device
if place.world_size > 1:
    dist.init_process_group(rank=place.rank, world_size=place.world_size)

store = open_store("train.store")
resize = RandomResizedCrop(ramp(0, 128, EPOCHS - 1, 224))  # 128x128 in the first epoch, 224x224 in the last
mix = OneOf(MixUp(0.2, len(store.classes)), CutMix(1.0, len(store.classes)))  # one of them for each image
augment = Augment(resize, RandomFlip(), Normalize(store), mix, seed=0)
loader = Loader(store, batch_size=256, device=device, tail="keep", transform=augment)

model = nn.Sequential(nn.Conv2d(3, 64, 8, stride=8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
model = model.append(nn.Linear(64, len(store.classes))).to(device, memory_format=torch.channels_last)
parallel = nn.parallel.DistributedDataParallel(model) if place.world_size > 1 else model
optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9, weight_decay=5e-5)

parts = {"model": model, "optimizer": optimizer, "loader": loader}
if os.path.exists(CHECKPOINT):
    state = torch.load(CHECKPOINT, map_location="cpu", weights_only=True)
    for name, part in parts.items():
        part.load_state_dict(state[name])

for epoch in range(loader.epoch, EPOCHS):
    for group in optimizer.param_groups:
        group["lr"] = 0.5 * (1 - epoch / EPOCHS)  # follows from the epoch, so it needs no state
    bar = tqdm(loader, f"epoch {epoch}", initial=len(loader) - loader.steps_left, disable=place.rank > 0)
    for batch in bar:
        losses = nn.functional.cross_entropy(parallel(batch.images), batch.labels, reduction="none")
        weighted = losses * batch.columns["weight"]
        loss = weighted[: batch.valid].sum() / max(batch.valid, 1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if loader.steps_left % EVERY == 0 and place.rank == 0:
            bar.set_postfix(loss=f"{loss.item():.3f}")
            torch.save({name: part.state_dict() for name, part in parts.items()}, f"{CHECKPOINT}.part")
            os.replace(f"{CHECKPOINT}.part", CHECKPOINT)
if place.world_size > 1:
    dist.destroy_process_group()
