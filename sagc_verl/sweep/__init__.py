"""The same training under several settings and seeds: what to run, what has run, and running it."""

from __future__ import annotations
