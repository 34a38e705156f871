"""Speech from text. Importable without ComfyUI, without a GPU and without the native extension.

The names below are all that ``nodes/`` may use.
"""

from .checkpoint import HOW_TO_GET, STARTER, Checkpoint, CheckpointError, check
from .codes import STOP_REASONS, Codes, SpokenUtterance
from .config import MODEL_TYPE
from .dialogue import Dialogue, assemble, speak_turns
from .engine import Engine, Speech, load
from .generation import Chunk, Generation, join
from .report import Report, report
from .sampling import SamplingParams
from .script import Reading, Script
from .status import ROUTE as STATUS_ROUTE
from .status import Held, Status, status
from .text import plan, split
from .turns import Turn, parse_turns
from .voice import Voice, check_name
from .voice_file import load_voice, save_voice, starter_voices

__all__ = [
    "HOW_TO_GET",
    "MODEL_TYPE",
    "STARTER",
    "STATUS_ROUTE",
    "STOP_REASONS",
    "Checkpoint",
    "CheckpointError",
    "Chunk",
    "Codes",
    "Dialogue",
    "Engine",
    "Generation",
    "Held",
    "Reading",
    "Report",
    "SamplingParams",
    "Script",
    "Speech",
    "SpokenUtterance",
    "Status",
    "Turn",
    "Voice",
    "assemble",
    "check",
    "check_name",
    "join",
    "load",
    "load_voice",
    "parse_turns",
    "plan",
    "report",
    "save_voice",
    "speak_turns",
    "split",
    "starter_voices",
    "status",
]
