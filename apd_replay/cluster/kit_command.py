"""`apd kit`: real SGLang on GPU hosts without network."""

from __future__ import annotations

from pathlib import Path

import click

from apd_replay.errors import RunError

MIB = 1 << 20


@click.group()
def kit() -> None:
    """Carry SGLang to a GPU host without network: build where packages can be had, install there (docs/gpu.md)."""


@kit.command()
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Folder of the parts; what to carry.")
@click.option("--work", type=click.Path(path_type=Path), help="Folder of downloads and the unpacked kit, 7 GB; default OUT.work.")
@click.option("--part-mib", type=click.IntRange(1), default=48, show_default=True, help="Largest part, MiB.")
@click.option("--sglang", metavar="VERSION", help="Another version of SGLang than the recipe's.")
@click.option("--compiler", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="A Python with torch and the kit's tvm-ffi to compile kernels with; default: made in WORK.")
@click.option("--no-kernels", is_flag=True, help="Leave the kernels to the host's first start (six minutes there instead of here).")
def build(out: Path, work: Path | None, part_mib: int, sglang: str | None, compiler: Path | None, no_kernels: bool) -> None:
    """Build a kit: the parts, kit.json with their checksums, and install.py."""
    from apd_replay.cluster.kit import build as kits

    plan = kits.recipe(sglang)
    if no_kernels:
        plan["kernels"] = {**plan["kernels"], "sglang": [], "flashinfer": []}
    files = kits.build(out, work or out.with_name(out.name + ".work"), part_mib * MIB, plan, click.echo, compiler)
    for file in files:
        click.echo(f"{file}  {file.stat().st_size / MIB:.1f} MiB")


@kit.command()
@click.argument("parts", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--to", "target", type=click.Path(path_type=Path), required=True, help="A new folder.")
def install(parts: tuple[Path, ...], target: Path) -> None:
    """Verify PARTS (files, or folders that hold them) and unpack them. Without this package: python3 install.py PARTS... --to DIR."""
    from apd_replay.cluster.kit import install as installer

    try:
        installer.install(parts, target)
    except installer.KitError as error:
        raise RunError(str(error)) from None
