"""The checkpoint on disk: which files, which tensors, which shapes, and what is wrong with them.

Reads the directory layout of ``bosonai/higgs-audio-v3-tts-4b``: ``config.json``, ``tokenizer.json``
and one safetensors file, or several with an index. Opening reads headers only; tensors are read one
by one. Knows nothing of computation. Tensors that nobody asks for (text head, training left-overs)
are ignored.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from .config import CodecConfig, ModelConfig

BACKBONE = "body."
TEXT_EMBEDDING = "tied.embedding.text_embedding.weight"
AUDIO_TABLE = "tied.embedding.modality_embeddings.0.embedding.weight"
CODEC = "tied.embedding.modality_embeddings.0.model."
SPECIAL_TOKENS = ("<|tts|>", "<|text|>", "<|audio|>", "<|ref_text|>", "<|ref_audio|>")
STARTER = "starter"

HOW_TO_GET = (
    "put bosonai/higgs-audio-v3-tts-4b (config.json, tokenizer.json, model.safetensors) into "
    "ComfyUI/models/tts/higgs-audio-v3-tts-4b/"
)
_HERE = Path(__file__).resolve().parent
STARTER_FOLDER = _HERE / STARTER
_INDEX = "model.safetensors.index.json"
_PLAIN = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32}
_SMALL_BYTES = 8 << 20  # larger ones are mapped by safetensors, not copied
_MAX_HEADER_BYTES = 100_000_000  # the format's own limit


class CheckpointError(ValueError):
    """The checkpoint can't be used; the message is one sentence that says what to do."""


@dataclass(frozen=True)
class TensorEntry:
    """Where one tensor lies: ``n_bytes`` from ``offset`` of ``file``, row-major ``shape``."""

    file: Path
    dtype: str  # as safetensors writes it: "BF16", "F32" …
    shape: tuple[int, ...]
    offset: int
    n_bytes: int


def _read_plain(entry: TensorEntry) -> Tensor:
    """A small tensor, without reading the file's header again as safetensors does for each."""
    data = bytearray(entry.n_bytes)
    with entry.file.open("rb") as file:
        file.seek(entry.offset)
        if file.readinto(data) != len(data):
            raise OSError("the file is cut off")
    return torch.frombuffer(data, dtype=_PLAIN[entry.dtype]).view(entry.shape)


def find(path_or_name: str | Path) -> Path:
    """Resolve ``starter``, a directory, or the name of a folder in ComfyUI's ``models/tts``.

    Raises:
        CheckpointError: nothing of that name.
    """
    if str(path_or_name) == STARTER:
        if not STARTER_FOLDER.is_dir():
            raise CheckpointError(
                "checkpoint: the starter voice is a package of its own when LiveVoice is installed "
                "from a wheel: pip install livevoice-starter"
            )
        return STARTER_FOLDER
    path = Path(path_or_name).expanduser()
    places = [path]
    custom_nodes = _HERE.parent.parent
    if custom_nodes.name == "custom_nodes" and not path.is_absolute():
        places.append(custom_nodes.parent / "models" / "tts" / path)
    for place in places:
        if place.is_dir():
            return place
    looked = " and ".join(str(place) for place in places)
    raise CheckpointError(
        f"checkpoint: no folder '{path_or_name}' (looked at {looked}); {HOW_TO_GET}"
    )


class Checkpoint:
    """One opened checkpoint directory. Thread-safe for reading."""

    def __init__(self, path: Path, config: ModelConfig, codec_config: CodecConfig) -> None:
        self.path = path
        self.config = config
        self.codec_config = codec_config
        self._entries = {
            name: entry for file in _weight_files(path) for name, entry in _read_header(file)
        }

    @classmethod
    def open(cls, path_or_name: str | Path) -> Checkpoint:
        """Open and check a checkpoint; reads headers, no weights.

        Raises:
            CheckpointError: one sentence about the first thing that is wrong.
        """
        checkpoint = cls._open_unchecked(path_or_name)
        problems = checkpoint.problems()
        if problems:
            more = f" ({len(problems) - 1} more; run `check`)" if len(problems) > 1 else ""
            raise CheckpointError(problems[0] + more)
        return checkpoint

    @classmethod
    def _open_unchecked(cls, path_or_name: str | Path) -> Checkpoint:
        path = find(path_or_name)
        raw = _read_json(path / "config.json")
        codec_file = path / "codec_config.json"
        codec_raw = _read_json(codec_file if codec_file.exists() else _HERE / "codec_config.json")
        try:
            config, codec_config = ModelConfig.from_json(raw), CodecConfig.from_json(codec_raw)
        except ValueError as error:
            raise CheckpointError(f"checkpoint: {path.name}: {error}") from error
        return cls(path, config, codec_config)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all tensors in the files."""
        return tuple(self._entries)

    def __contains__(self, name: str) -> bool:
        return name in self._entries

    def entry(self, name: str) -> TensorEntry:
        """Where tensor ``name`` lies on disk; raises CheckpointError when it is not there."""
        if name not in self._entries:
            raise CheckpointError(
                f"checkpoint: {self.path.name} has no tensor {name}; {HOW_TO_GET}"
            )
        return self._entries[name]

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of tensor ``name``."""
        return self.entry(name).shape

    def tensor(self, name: str, device: str = "cpu") -> Tensor:
        """Read one tensor, in the stored dtype."""
        entry = self.entry(name)
        try:
            if entry.dtype in _PLAIN and 0 < entry.n_bytes <= _SMALL_BYTES:
                return _read_plain(entry).to(device)
            with safe_open(entry.file, framework="pt", device=str(device)) as file:
                return file.get_tensor(name)
        except (OSError, SafetensorError) as error:
            raise CheckpointError(
                f"checkpoint: can't read {name} in {entry.file}: {error}"
            ) from error

    @cached_property
    def has_encoder(self) -> bool:
        """Whether the codec's encoder is there, which voice cloning needs."""
        return f"{CODEC}acoustic_encoder.conv1.weight" in self and f"{CODEC}fc.weight" in self

    @cached_property
    def codec_id(self) -> str:
        """Identifies the codec: the same for checkpoints whose codes mean the same sound.

        A hash of all that turns codes into the decoder's input, which is quick to read; the
        decoder behind it is not.
        """
        parts = ["codebook.embed", "project_out.weight", "project_out.bias"]
        books = range(self.codec_config.n_codebooks)
        names = [f"quantizer.quantizers.{book}.{part}" for book in books for part in parts]
        digest = hashlib.sha256()
        for name in (*names, "fc2.weight", "fc2.bias"):
            digest.update(self.tensor(CODEC + name).float().numpy())
        return digest.hexdigest()[:16]

    @cached_property
    def generation_defaults(self) -> dict[str, Any]:
        """``generation_config.json`` of the checkpoint (temperature, top_k, top_p), or empty."""
        file = self.path / "generation_config.json"
        return _read_json(file) if file.exists() else {}

    def problems(self) -> list[str]:
        """What is wrong, one sentence each; empty when the checkpoint can speak."""
        return [*self._tensor_problems(), *_tokenizer_problems(self.path)]

    def _tensor_problems(self) -> Iterator[str]:
        expected = backbone_shapes(self.config) | codec_decoder_shapes(self.codec_config)
        missing = [name for name in expected if name not in self]
        if missing:
            yield (
                f"checkpoint: {self.path.name}: {len(missing)} of {len(expected)} tensors are "
                f"missing, first {missing[0]}; {HOW_TO_GET}"
            )
        for name, shape in expected.items():
            if name in self and self.shape(name) != shape:
                yield (
                    f"checkpoint: {self.path.name}: {name} has shape {list(self.shape(name))}, "
                    f"config.json asks for {list(shape)}; file and config are not of one model"
                )
        books = (self.config.n_codebooks, self.config.codebook_size)
        codec_books = (self.codec_config.n_codebooks, self.codec_config.codebook_size)
        if books != codec_books:
            yield (
                f"checkpoint: {self.path.name}: the model speaks {books[0]} codebooks of "
                f"{books[1]} codes, the codec {codec_books[0]} of {codec_books[1]}"
            )


def check(path_or_name: str | Path) -> list[str]:
    """List everything that is wrong with a checkpoint, one sentence each; empty when it is fine."""
    try:
        return Checkpoint._open_unchecked(path_or_name).problems()
    except CheckpointError as error:
        return [str(error)]


def backbone_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Tensors of the backbone and of the two embedding tables; weights are ``[out, in]``."""
    H, D, F = config.hidden, config.head_dim, config.ffn
    Q, K = config.n_heads * D, config.n_kv_heads * D
    layer = {
        "input_layernorm.weight": (H,),
        "self_attn.q_proj.weight": (Q, H),
        "self_attn.k_proj.weight": (K, H),
        "self_attn.v_proj.weight": (K, H),
        "self_attn.o_proj.weight": (H, Q),
        "self_attn.q_norm.weight": (D,),
        "self_attn.k_norm.weight": (D,),
        "post_attention_layernorm.weight": (H,),
        "mlp.gate_proj.weight": (F, H),
        "mlp.up_proj.weight": (F, H),
        "mlp.down_proj.weight": (H, F),
    }
    return {
        TEXT_EMBEDDING: (config.text_vocab, H),
        AUDIO_TABLE: (config.n_codebooks * config.codebook_vocab, H),
        f"{BACKBONE}norm.weight": (H,),
    } | {
        f"{BACKBONE}layers.{i}.{name}": shape
        for i in range(config.n_layers)
        for name, shape in layer.items()
    }


def codec_decoder_shapes(config: CodecConfig) -> dict[str, tuple[int, ...]]:
    """Tensors that decoding needs: quantisers, ``fc2`` and the acoustic decoder."""
    width = config.acoustic_hidden + config.semantic_hidden
    shapes: dict[str, tuple[int, ...]] = {
        "fc2.weight": (config.acoustic_hidden, width),
        "fc2.bias": (config.acoustic_hidden,),
        "acoustic_decoder.conv1.weight": (config.decoder_hidden, config.acoustic_hidden, 7),
        "acoustic_decoder.conv1.bias": (config.decoder_hidden,),
    }
    for q in range(config.n_codebooks):
        book = f"quantizer.quantizers.{q}."
        shapes[f"{book}codebook.embed"] = (config.codebook_size, config.codebook_dim)
        shapes[f"{book}project_out.weight"] = (width, config.codebook_dim)
        shapes[f"{book}project_out.bias"] = (width,)
    channels = config.decoder_hidden
    for b, stride in enumerate(config.upsampling_ratios):
        shapes |= _upsampling_block_shapes(f"acoustic_decoder.block.{b}.", channels, stride)
        channels //= 2
    shapes["acoustic_decoder.snake1.alpha"] = (1, channels, 1)
    shapes["acoustic_decoder.conv2.weight"] = (1, channels, 7)
    shapes["acoustic_decoder.conv2.bias"] = (1,)
    return {CODEC + name: shape for name, shape in shapes.items()}


def _upsampling_block_shapes(block: str, channels: int, stride: int) -> dict[str, tuple[int, ...]]:
    half = channels // 2
    shapes: dict[str, tuple[int, ...]] = {
        f"{block}snake1.alpha": (1, channels, 1),
        f"{block}conv_t1.weight": (channels, half, 2 * stride),
        f"{block}conv_t1.bias": (half,),
    }
    for unit in (f"{block}res_unit{u}." for u in (1, 2, 3)):
        shapes[f"{unit}snake1.alpha"] = shapes[f"{unit}snake2.alpha"] = (1, half, 1)
        shapes[f"{unit}conv1.weight"] = (half, half, 7)
        shapes[f"{unit}conv2.weight"] = (half, half, 1)
        shapes[f"{unit}conv1.bias"] = shapes[f"{unit}conv2.bias"] = (half,)
    return shapes


def _read_json(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise CheckpointError(f"checkpoint: {file} is missing; {HOW_TO_GET}") from error
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise CheckpointError(f"checkpoint: can't read {file}: {error}; get it again") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"checkpoint: {file} is not a JSON object; get it again")
    return content


def _weight_files(path: Path) -> list[Path]:
    """The safetensors files: those that the index names, else all in the folder."""
    if (path / _INDEX).exists():
        weight_map = _read_json(path / _INDEX).get("weight_map")
        if not isinstance(weight_map, dict):
            raise CheckpointError(f"checkpoint: {path / _INDEX} has no weight_map; get it again")
        files = [path / name for name in sorted(set(weight_map.values()))]
    else:
        files = sorted(path.glob("*.safetensors"))
    missing = [file.name for file in files if not file.is_file()]
    if missing or not files:
        name = missing[0] if missing else "model.safetensors"
        raise CheckpointError(f"checkpoint: {path / name} is missing; {HOW_TO_GET}")
    return files


def _read_header(file: Path) -> Iterator[tuple[str, TensorEntry]]:
    """Names and places of the tensors of one safetensors file (8 bytes length, JSON, data)."""
    again = "the download may have stopped; delete the file and get it again"
    try:
        size = file.stat().st_size
        with file.open("rb") as stream:
            (n_header,) = struct.unpack("<Q", stream.read(8))
            if n_header > min(size, _MAX_HEADER_BYTES):
                raise CheckpointError(f"checkpoint: {file} has no safetensors header; {again}")
            header = json.loads(stream.read(n_header))
        header.pop("__metadata__", None)
        entries = [_entry(file, name, 8 + n_header, spec) for name, spec in header.items()]
    except OSError as error:
        raise CheckpointError(f"checkpoint: can't read {file}: {error}") from error
    except (struct.error, ValueError, KeyError, TypeError, AttributeError) as error:
        if isinstance(error, CheckpointError):
            raise
        raise CheckpointError(f"checkpoint: {file} has a broken header; {again}") from error
    end = max((entry.offset + entry.n_bytes for _, entry in entries), default=0)
    if size < end:
        raise CheckpointError(
            f"checkpoint: {file} is cut off: {size:,} of {end:,} bytes are there; {again}"
        )
    yield from entries


def _entry(file: Path, name: str, data: int, spec: dict[str, Any]) -> tuple[str, TensorEntry]:
    begin, end = spec["data_offsets"]
    shape = tuple(int(size) for size in spec["shape"])
    return name, TensorEntry(file, str(spec["dtype"]), shape, data + begin, end - begin)


def _tokenizer_problems(path: Path) -> Iterator[str]:
    try:
        added = _read_json(path / "tokenizer.json").get("added_tokens", [])
        present = {token["content"] for token in added}
    except (CheckpointError, KeyError, TypeError) as error:
        yield (
            str(error)
            if isinstance(error, CheckpointError)
            else (f"checkpoint: {path / 'tokenizer.json'} is not a tokenizer; get it again")
        )
        return
    missing = [token for token in SPECIAL_TOKENS if token not in present]
    if missing:
        yield (
            f"checkpoint: {path / 'tokenizer.json'} has no {' '.join(missing)}; it is not the "
            f"tokenizer of Higgs Audio v3; {HOW_TO_GET}"
        )
