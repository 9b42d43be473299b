"""Token ids to text from a `tokenizer.json` alone, so that the report's image needs no tokenizer library.

Knows the byte-level alphabet (GPT-2, Llama 3, Qwen, SmolLM) and the metaspace with byte fallback (Llama 2).
"""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

_BYTE_FALLBACK = re.compile(r"^<0x([0-9A-F]{2})>$")
_METASPACE = "\u2581"


def read_token_texts(path: Path) -> dict[int, bytes]:
    """UTF-8 bytes of each id in the vocabulary of the `tokenizer.json` at `path`. Raises ValueError."""
    try:
        tree = json.loads(path.read_text("utf-8"))
        vocabulary = tree["model"]["vocab"]
    except (OSError, KeyError, TypeError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ValueError(f"{path.name}: no vocabulary in it: {error!r}") from None
    # BPE, WordPiece and WordLevel map piece to id; Unigram lists [piece, score] in the order of ids.
    pairs = vocabulary.items() if isinstance(vocabulary, dict) else ((row[0], i) for i, row in enumerate(vocabulary))
    byte_level = "ByteLevel" in {
        _kind(part) for name in ("pre_tokenizer", "decoder") for part in _parts(tree.get(name))
    }
    decode = _from_byte_alphabet if byte_level else _from_metaspace
    texts = {int(index): decode(piece) for piece, index in pairs}
    for token in tree.get("added_tokens") or []:
        texts[int(token["id"])] = str(token["content"]).encode()
    return texts


def split_text(ids: Sequence[int], texts: Mapping[int, bytes]) -> list[str]:
    """Text of each token. A character spread over several tokens belongs to the one that completes it."""
    pieces: list[str] = []
    pending = b""
    for token in ids:
        pending += texts.get(token, f"<{token}>".encode())
        whole, pending = _whole_characters(pending)
        pieces.append(whole)
    if pending and pieces:
        pieces[-1] += pending.decode("utf-8", "replace")
    return pieces


def _whole_characters(data: bytes) -> tuple[str, bytes]:
    """The longest decodable head, and the up to three bytes of a character that is not complete yet."""
    try:
        return data.decode("utf-8"), b""
    except UnicodeDecodeError as error:
        if error.reason == "unexpected end of data":
            return data[: error.start].decode("utf-8"), data[error.start :]
        return data.decode("utf-8", "replace"), b""


def _parts(node: Any) -> list[dict[str, Any]]:
    """A pre-tokenizer or decoder and, for a Sequence, its members."""
    if not isinstance(node, dict):
        return []
    return [node, *node.get("pretokenizers", []), *node.get("decoders", [])]


def _kind(node: dict[str, Any]) -> str:
    return str(node.get("type", ""))


def _from_metaspace(piece: str) -> bytes:
    fallback = _BYTE_FALLBACK.match(piece)
    if fallback:
        return bytes([int(fallback[1], 16)])
    return piece.replace(_METASPACE, " ").encode()


def _from_byte_alphabet(piece: str) -> bytes:
    if all(character in _BYTE_OF for character in piece):
        return bytes(_BYTE_OF[character] for character in piece)
    return piece.encode()


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's bijection: printable Latin-1 bytes stand for themselves, the others for characters from 256 on."""
    printable = {*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + index): byte for index, byte in enumerate(others)}


_BYTE_OF = _byte_alphabet()
