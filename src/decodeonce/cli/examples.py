"""Example command lines for each --help. A test parses every one with the command's own parameters."""

from __future__ import annotations

EXAMPLES = """
prep build imagenet /data/imagenet train.store
prep build imagenet /data/imagenet val.store --split val --size 320
prep build folder images images.store --format hdf5 --shard-size 10GB
prep build folder photos scenes.store --paired mask=masks
prep build list train.tsv train.store --root /data/images
prep build list train.csv train.store --column score --column token_ids
prep build webdataset 'shards/train-{0000..0147}.tar' train.store --dry-run
prep build parquet /data/imagenet-1k train.store --image-column image
prep build dataset mypackage.data:train train.store
prep plan imagenet /data/imagenet train.store --size 256
prep work train.store --task 3 --tasks 16
srun prep work train.store --log logs/
prep finish train.store --max-bad 0.5%
prep submit slurm build imagenet /data/imagenet train.store --tasks 16 --cpus 32 --time 4:00:00
prep submit slurm build folder images images.store --tasks 4 --site perlmutter --account m1234 --submit
prep submit pbs build imagenet /data/imagenet train.store --tasks 8 --cpus 64 --time 2:00:00
prep status train.store
prep logs train.store
prep cancel train.store
prep info train.store
prep verify train.store
prep repair train.store --from /data/imagenet
prep repair copy.store --from train.store
prep ls train.store --rows :20
prep ls train.store --class n01440764 --match '*_10026.JPEG'
prep show train.store --class n01440764 --out sheet.png
prep show train.store --random 100 --seed 7 --out sheet.png
prep report train.store --out train.html
prep convert train.store train-h5.store --format hdf5
prep convert train.store small.store --size 128 --class n01440764 --class n01443537
prep convert first.store second.store both.store
prep column add train.store score scores.npy
prep column remove train.store score
prep stage train.store /local/part --node-rank 0 --node-count 4
srun --ntasks-per-node=1 prep stage train.store /local/part
prep stage s3://bucket/train.store /local/part
prep doctor /scratch/me --json
""".strip().splitlines()


# Of `prep` itself.
FIRST_EXAMPLES = ("prep build imagenet /data/imagenet train.store", "prep info train.store", "prep verify train.store")


def examples(path: str) -> list[str]:
    """Return the examples of the command with this path after `prep`; for a group, those of all its commands."""
    return [line for line in EXAMPLES if f"prep {path} " in f"{line} "] if path else [*FIRST_EXAMPLES]
