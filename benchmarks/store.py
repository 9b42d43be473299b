"""The object store against its own client: the same bytes through Burnish's artifacts and through plain `minio` calls.

Usage: python benchmarks/store.py [--mb 500] [--files 2] [--repeats 4] [--json FILE]. Both talk to one embedded
SeaweedFS and take turns in going first, since the second finds a disk that is still busy with the first. Bytes are new
in every repeat, so that nothing is found in place by chance.
"""

import argparse
import json
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

from minio import Minio

from burnish.contracts.artifacts import Lineage, Manifest
from burnish.store import open_store
from burnish.store.seaweed import start_seaweed

_LINEAGE = Lineage(stage="benchmark")
_LINES = ("put: minio", "put: Burnish", "put again: Burnish", "get: minio", "get: Burnish", "get again: Burnish")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mb", type=int, default=500, help="megabytes in all")
    parser.add_argument("--files", type=int, default=2, help="files they are spread over")
    parser.add_argument("--repeats", type=int, default=4, help="an even number, for the turns")
    parser.add_argument("--json", type=Path, help="write the figures here as well")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="burnish-store-") as folder:
        scratch = Path(folder)
        with start_seaweed(scratch / "weed") as environment:
            os.environ |= environment
            os.environ["BURNISH_CACHE"] = str(scratch / "cache")
            runs = [_round(scratch, given.mb, given.files, turn % 2 == 0) for turn in range(given.repeats)]
    seconds = {name: statistics.median(run[name] for run in runs) for name in runs[0]}
    _print(seconds, runs, given.mb)
    if given.json:
        figures = {"mb": given.mb, "files": given.files, "load": os.getloadavg(), "seconds": seconds, "runs": runs}
        given.json.write_text(json.dumps(figures, indent=2), "utf-8")


def _round(scratch: Path, megabytes: int, files: int, plain_first: bool) -> dict[str, float]:
    """Seconds of each way to move the same fresh bytes."""
    source = scratch / "source"
    shutil.rmtree(source, ignore_errors=True)
    source.mkdir()
    for index in range(files):
        _random_file(source / f"{index}.bin", megabytes * 10**6 // files)
    store, client = open_store(), _plain_client()
    paths = sorted(source.iterdir())
    plain, fetched, linked = (scratch / name for name in ("plain", "fetched", "linked"))
    manifests: list[Manifest] = []

    def plain_put() -> None:
        for path in paths:
            client.fput_object("mlflow", path.name, str(path))

    def plain_get() -> None:
        for path in paths:
            client.fget_object("mlflow", path.name, str(plain / path.name))

    def put() -> None:
        manifests.append(store.put_artifact("policy", source, lineage=_LINEAGE, counts={}, metadata={}))

    turn = 1 if plain_first else -1
    seconds = {name: _timed(work) for name, work in [("put: minio", plain_put), ("put: Burnish", put)][::turn]}
    seconds["put again: Burnish"] = _timed(put)
    shutil.rmtree(store.cache.root)
    gets: list[tuple[str, Callable[[], None]]] = [
        ("get: minio", plain_get),
        ("get: Burnish", lambda: store.fetch(manifests[0], fetched)),
    ]
    seconds |= {name: _timed(work) for name, work in gets[::turn]}
    seconds["get again: Burnish"] = _timed(lambda: store.fetch(manifests[0], linked))
    for target in (plain, fetched, linked):
        if any((target / path.name).read_bytes() != path.read_bytes() for path in paths):
            raise SystemExit(f"{target.name}: other bytes came back")
        shutil.rmtree(target)
    return {name: seconds[name] for name in _LINES}


def _timed(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def _random_file(path: Path, size: int) -> None:
    with open(path, "wb") as file:
        for start in range(0, size, 1 << 24):
            file.write(os.urandom(min(1 << 24, size - start)))


def _plain_client() -> Minio:
    return Minio(
        urlsplit(os.environ["BURNISH_S3_ENDPOINT"]).netloc,
        access_key=os.environ["AWS_ACCESS_KEY_ID"],
        secret_key=os.environ["AWS_SECRET_ACCESS_KEY"],
        region=os.environ["BURNISH_S3_REGION"],
        secure=False,
    )


def _print(seconds: dict[str, float], runs: list[dict[str, float]], megabytes: int) -> None:
    print(f"{megabytes} MB, medians of {len(runs)}")
    print(f"{'':<22}{'s':>8}{'MB/s':>9}{'minio time / ours':>19}")
    for name, value in seconds.items():
        verb = name.partition(":")[0].removesuffix(" again")
        # Runs are compared pairwise: what else the machine did at the time hit both.
        ratio = statistics.median(run[f"{verb}: minio"] / run[name] for run in runs)
        print(f"{name:<22}{value:>8.2f}{megabytes / value:>9.0f}{ratio:>19.2f}")


if __name__ == "__main__":
    main()
