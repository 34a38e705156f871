"""What was spoken, utterance by utterance, for people, for machines and as subtitles.

Everything here is read off the codes: 25 frames are a second, so the times are exact.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from .codes import Codes
from .duration import estimate_s
from .tags import plain

_SHORT, _LONG = 0.5, 1.8
"""Times the estimate that speech may take; the starter takes 0.75 to 1.3, the teacher up to 1.2."""
_ALLOWANCE_S = 0.6  # very short texts vary by more than their length


@dataclass(frozen=True)
class UtteranceReport:
    """One utterance.

    Attributes:
        number: from 1.
        text: as the model read it.
        start_s: where it starts in the sound.
        end_s: where it ends.
        seconds: its duration.
        expected_s: its duration by estimate.
        plausibility: "as expected", "shorter than expected" or "longer than expected".
        frames: its codes.
        seed: of the whole text.
        attempt: the sub-seed; 0 is the first.
        stop_reason: why it ended.
        gap_s: silence after it; below 0 an overlap.
    """

    number: int
    text: str
    start_s: float
    end_s: float
    seconds: float
    expected_s: float
    plausibility: str
    frames: int
    seed: int
    attempt: int
    stop_reason: str
    gap_s: float

    @property
    def is_fine(self) -> bool:
        """Whether it ended by itself, about when it should."""
        return self.stop_reason == "eoc" and self.plausibility == "as expected"


@dataclass(frozen=True)
class Report:
    """A whole text.

    Attributes:
        utterances: in order; silence alone is not one.
        seconds: of all the sound.
        stop_reason: the worst of all.
        notes: what the writer should know.
    """

    utterances: tuple[UtteranceReport, ...]
    seconds: float
    stop_reason: str
    notes: tuple[str, ...]

    def text(self) -> str:
        """For people: one line an utterance, and the notes."""
        return "\n".join([self._head(), *map(_line, self.utterances), *self.notes])

    def summary(self) -> str:
        """As :meth:`text`, but of the utterances only those that should be listened to."""
        doubtful = (each for each in self.utterances if not each.is_fine)
        return "\n".join([self._head(), *map(_line, doubtful), *self.notes])

    def _head(self) -> str:
        doubtful = [str(each.number) for each in self.utterances if not each.is_fine]
        head = f"{self.seconds:.2f} s, {len(self.utterances)} utterances, {self.stop_reason}"
        return f"{head}; listen to {', '.join(doubtful)}" if doubtful else head

    def json(self) -> str:
        """For machines: the fields above."""
        return json.dumps(asdict(self), ensure_ascii=False, indent=2)

    def srt(self) -> str:
        """Subtitles in SubRip format, from the positions of the frames."""
        blocks = [
            f"{number}\n{_clock(each.start_s)} --> {_clock(each.end_s)}\n{plain(each.text)}\n"
            for number, each in enumerate(self.utterances, start=1)
        ]
        return "\n".join(blocks)


def report(codes: Codes) -> Report:
    """Describe what was spoken."""
    found: list[UtteranceReport] = []
    clock_s = 0.0
    last = len(codes.utterances) - 1
    for index, each in enumerate(codes.utterances):
        n_frames = len(each.frames)
        seconds = n_frames / codes.frame_rate_hz
        if each.text:
            expected_s = estimate_s(each.text)
            found.append(
                UtteranceReport(
                    number=len(found) + 1,
                    text=each.text,
                    start_s=round(clock_s, 4),
                    end_s=round(clock_s + seconds, 4),
                    seconds=seconds,
                    expected_s=round(expected_s, 2),
                    plausibility=_plausibility(seconds, expected_s),
                    frames=n_frames,
                    seed=codes.sampling.seed,
                    attempt=each.attempt,
                    stop_reason=each.stop_reason,
                    gap_s=each.gap_s,
                )
            )
        clock_s += seconds + (each.gap_s if index < last else max(each.gap_s, 0.0))
    return Report(tuple(found), round(clock_s, 4), codes.stop_reason, codes.notes)


def _line(each: UtteranceReport) -> str:
    return (
        f"{each.number}: {each.start_s:.2f} - {each.end_s:.2f} s, {each.frames} frames, "
        f"{each.stop_reason}, attempt {each.attempt + 1}, {each.plausibility}: {each.text}"
    )


def _plausibility(seconds: float, expected_s: float) -> str:
    if seconds < _SHORT * expected_s - _ALLOWANCE_S / 2:
        return "shorter than expected"
    if seconds > _LONG * expected_s + _ALLOWANCE_S:
        return "longer than expected"
    return "as expected"


def _clock(seconds: float) -> str:
    s, ms = divmod(round(1000 * seconds), 1000)
    return f"{s // 3600:02}:{s // 60 % 60:02}:{s % 60:02},{ms:03}"
