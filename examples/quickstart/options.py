"""The quickstart's options, and what its models differ in.

Read before anything is installed, so it needs the standard library only. Run as a script it prints the extras that
scripts/setup_cpu.sh is to add:

    python3 examples/quickstart/options.py --model smollm2
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Model:
    """One of the quickstart's models, with its task."""

    make: str
    """Script that makes model and data."""
    train: str
    """Script with the training command."""
    steps: int
    out: str
    all_cores: bool
    """Whether its processes share out their work over the cores; one so small that it only loses by that does not."""
    extras: str
    """Extras of pyproject.toml that it needs beside those of the CPU path, comma-separated."""
    sagc: tuple[str, ...]
    """Overrides of the run with SAGC. So few steps need a shorter warm-up and dwell than a real run's defaults."""


MODELS = {
    "walk": Model(
        make="make_task.py",
        train="train.sh",
        steps=40,
        out="outputs/quickstart",
        all_cores=False,
        extras="",
        sagc=("+sagc.sizes=[4,6,8,12]", "+sagc.budget=0.2", "+sagc.warmup=3", "+sagc.dwell=3"),
    ),
    "smollm2": Model(
        make="make_smollm2.py",
        train="train_smollm2.sh",
        steps=6,
        out="outputs/quickstart_smollm2",
        all_cores=True,
        extras="smollm2",
        sagc=("+sagc.sizes=[4,6,8]", "+sagc.budget=0.2", "+sagc.warmup=2", "+sagc.dwell=2"),
    ),
}


@dataclass(frozen=True)
class Options:
    """What the user asked for, defaults filled in."""

    model: Model
    steps: int
    out: Path
    seed: int


def parse_options(arguments: list[str] | None = None) -> Options:
    """The options of a command line, by default this process's.

    Raises:
        SystemExit: a wrong option (code 2; one line says why), or --help (code 0).
    """
    parser = argparse.ArgumentParser(
        prog="scripts/quickstart.sh",
        description="Trains a small model on the CPU with real veRL, with a static group size, then with SAGC.",
        epilog="The first call installs what it needs into .venv (VENV names another folder).",
        allow_abbrev=False,
    )
    steps_by_model = " or ".join(f"{model.steps} ({name})" for name, model in MODELS.items())
    out_by_model = " or ".join(model.out for model in MODELS.values())
    parser.add_argument(
        "--model",
        choices=list(MODELS),
        default="walk",
        help="walk (default): a tiny model made on the spot; smollm2: a real 135M chat model on small sums",
    )
    parser.add_argument("--steps", type=int, metavar="N", help=f"training steps of each run (default {steps_by_model})")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help=f"folder for everything (default {out_by_model})")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="seed of both runs (default 1)")
    chosen = parser.parse_args(arguments)
    model = MODELS[chosen.model]
    steps = model.steps if chosen.steps is None else chosen.steps
    out = Path(model.out) if chosen.out is None else chosen.out
    if steps < 1:
        parser.error(f"--steps {steps}: must be at least 1")
    if chosen.seed < 0:
        parser.error(f"--seed {chosen.seed}: must be at least 0")
    for folder in (out, *out.parents):
        if folder.exists() and not folder.is_dir():
            parser.error(f"--out {out}: {folder} is not a folder")
    return Options(model, steps, out, chosen.seed)


if __name__ == "__main__":
    print(parse_options().model.extras)
