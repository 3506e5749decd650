"""The option `--steps FIRST:LAST`, shared by commands."""

from __future__ import annotations

from sagc_verl.cli.errors import UserError

HELP = "First and last step, both included: 10:200, 10:, :200, or 12 for one."


def parse_steps(text: str | None) -> tuple[int | None, int | None]:
    """(first, last), None for an open end.

    Raises:
        UserError: the text is no range of steps.
    """
    if text is None or text.strip() in ("", ":"):
        return None, None
    first, colon, last = text.partition(":")
    try:
        bounds = (int(first) if first.strip() else None, int(last) if last.strip() else None)
    except ValueError:
        raise UserError(f"--steps {text}: must be FIRST:LAST, e.g. 10:200, 10:, :200 or 12") from None
    if not colon:
        bounds = (bounds[0], bounds[0])
    if bounds[0] is not None and bounds[1] is not None and bounds[0] > bounds[1]:
        raise UserError(f"--steps {text}: the first step is after the last")
    return bounds
