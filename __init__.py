"""LiveVoice: text to speech in ComfyUI for the Higgs Audio v3 TTS-4B checkpoint.

ComfyUI's door. Imports nothing heavy: the nodes are imported when ComfyUI asks for them.
"""

import logging

WEB_DIRECTORY = "./nodes/web"


async def comfy_entrypoint():
    """Return the extension that lists the nodes (ComfyUI calls this once, at start)."""
    try:
        from .nodes import LiveVoiceExtension
    except Exception:
        # ComfyUI prints the message of an error raised here, not where it comes from.
        logging.getLogger(__name__).exception("LiveVoice: the nodes could not be imported")
        raise
    return LiveVoiceExtension()
