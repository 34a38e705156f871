"""Write ../voices/<name>.safetensors: one utterance of each voice as a reference, for the voice combo and for dialogues.

usage: python -m livevoice.engine.starter.recipe.reference_voices [CODES]   (CODES: the folder that load_codes.py reads)
Without CODES, the codes and sentences are those of the files that are there; the rest is written anew. The sentences are of our own templates (text.py); the first utterance with that text is taken.
"""
import sys
from pathlib import Path

import torch

from livevoice.engine.checkpoint import Checkpoint
from livevoice.engine.voice import Voice
from livevoice.engine.voice_file import load_voice, save_voice

SENTENCES = {
    "hibari": "Let us meet at the museum at a quarter past eight. What did Joshua drop in the store?",
    "rms": "She went to the hotel by bus. Would you like to go to the office?",
    "slt": "Play some music in the shop! Let us meet at the bedroom at six o'clock.",
}
PREVIEW = "Good morning! The train leaves at seven, and the coffee is ready."
LICENCE = {
    "hibari": "Synthetic voice of hibari-tts (Apache-2.0, distilled from Kokoro-82M); see NOTICE of the starter.",
    "rms": "Synthetic voice of flite cmu_us_rms (CMU, free use with notice); see NOTICE of the starter.",
    "slt": "Synthetic voice of flite cmu_us_slt (CMU, free use with notice); see NOTICE of the starter.",
}

if __name__ == "__main__":
    wanted = dict(SENTENCES)
    folder = Path(__file__).parents[1] / "voices"
    folder.mkdir(exist_ok=True)
    if len(sys.argv) > 1:
        sys.path.insert(0, sys.argv[1])
        import load_codes

        utterances = load_codes.read(sys.argv[1])
    else:
        there = [load_voice(folder / f"{name}.safetensors") for name in SENTENCES]
        utterances = [(voice.name, voice.transcript, voice.codes.numpy()) for voice in there]
    for name, text, codes in utterances:
        if wanted.get(name) == text:
            del wanted[name]
            voice = Voice(torch.from_numpy(codes.astype("int64")), text, name, LICENCE[name], PREVIEW, Checkpoint.open("starter").codec_id)
            save_voice(voice, folder / f"{name}.safetensors")
            print(name, list(codes.shape), text)
    assert not wanted, wanted
