"""Small disks, mounted for a test."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def disk(at: Path, options: str) -> Iterator[Path]:
    """Mount a file system of memory: `size=64k`, or `ro`."""
    at.mkdir(exist_ok=True)
    mount = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(at)]
    if subprocess.run(mount, check=False, capture_output=True).returncode != 0:
        pytest.skip("no file system can be mounted here: it needs the right to (CAP_SYS_ADMIN)")
    try:
        yield at
    finally:
        subprocess.run(["umount", "--lazy", str(at)], check=True)
