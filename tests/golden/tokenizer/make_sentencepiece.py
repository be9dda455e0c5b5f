"""Writes sentencepiece.json: a small BPE vocabulary trained as Llama's was, and what sentencepiece itself encodes.

python -m venv venv && venv/bin/pip install sentencepiece && venv/bin/python make_sentencepiece.py README.md
"""

import json
import pathlib
import sys
import tempfile

import sentencepiece

TEXTS = [
    "The packages are the same bytes for the same inputs.",
    "",
    " ",
    "  two leading, two trailing  ",
    "tab\tand\nnewline\r\n\r\nand\n\n\nmore   ",
    "In 1984, 12345678 people paid $3.50; 007.",
    "I'm sure they'd've said it's theirs",
    "naïve café — “quotes” … Straße ½",
    "Привет, мир! 你好,世界。",
    "👩🏽‍🚀 🇫🇷",
    "def f(x):\n    return x ** 2  # square\n\n\nclass A:\n\tpass\n",
    "anebake convert --recipe int8-rtn-v1 --model sample",
    "aaaaaaaaaaaaaaaa bbbbbbb ababababab",
    "\u0000\u0007\u200b\u00a0x",
]


def kind(model: sentencepiece.SentencePieceProcessor, piece: int) -> int:
    """`enum llama_token_type`."""
    if model.is_unknown(piece):
        return 2
    if model.is_control(piece):
        return 3
    return 6 if model.is_byte(piece) else 1


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        prefix = str(pathlib.Path(folder, "model"))
        sentencepiece.SentencePieceTrainer.train(
            input=sys.argv[1],
            model_prefix=prefix,
            model_type="bpe",
            vocab_size=700,
            byte_fallback=True,
            split_digits=True,
            allow_whitespace_only_pieces=True,
            remove_extra_whitespaces=False,
            normalization_rule_name="identity",
            minloglevel=2,
        )
        model = sentencepiece.SentencePieceProcessor(model_file=f"{prefix}.model")
    pieces = range(model.get_piece_size())
    golden = {
        "tokens": [model.id_to_piece(piece) for piece in pieces],
        "scores": [model.get_score(piece) for piece in pieces],
        "types": [kind(model, piece) for piece in pieces],
        "bos": model.bos_id(),
        "eos": model.eos_id(),
        "cases": [{"text": text, "tokens": model.encode(text)} for text in TEXTS],
    }
    path = pathlib.Path(__file__).with_name("sentencepiece.json")
    path.write_text(json.dumps(golden, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
