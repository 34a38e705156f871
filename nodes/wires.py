"""Types of the wires between this pack's nodes."""

from __future__ import annotations

from comfy_api.latest import io

MODEL = io.Custom("LIVEVOICE_MODEL")
"""An :class:`.residency.EnginePatcher`."""

CODES = io.Custom("LIVEVOICE_CODES")
"""A :class:`..engine.Codes`."""

VOICE = io.Custom("LIVEVOICE_VOICE")
"""A :class:`..engine.Voice`."""

READING = io.Custom("LIVEVOICE_READING")
"""A :class:`..engine.Reading`."""
