"""Writes cases.json: texts and the tokens that llama.cpp gives for them, for several `tokenizer.ggml.pre`.

All on the vocabulary of the sample model; what `pre` changes is how text is split before the merges.

    python -m venv venv && venv/bin/pip install gguf xllamacpp
    venv/bin/python make_golden.py SmolLM2-135M-Instruct.Q4_1.gguf
"""

import json
import pathlib
import subprocess
import sys
import tempfile
import urllib.request

import xllamacpp

TEXTS = [
    "The capital of France is",
    "",
    " ",
    "   ",
    "  two leading, two trailing  ",
    "tab\tand\nnewline\r\n\r\nand\n\n\nmore   ",
    "In 1984, 12345678 people paid $3.50; 007.",
    "I'm sure they'd've said it's theirs; WE'LL SEE, DON'T they'Re",
    "naïve café — “quotes” … Straße ½ ² Ⅷ",
    "Привет, мир! 你好,世界。こんにちは 안녕하세요 مرحبا שלום नमस्ते",
    "👩🏽‍🚀 🇫🇷 ❤️ 🤷",
    "def f(x):\n    return x ** 2  # square\n\n\nclass A:\n\tpass\n",
    "for (int i = 0; i < n; ++i) { a[i] += b[i] * 0x1F; }",
    "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n",
    "a<|endoftext|> b <|im_end|>c<|im_end",
    "\u0000\u0007\u200b\ufeff\u00a0x\u2028y",
    "https://example.com/a_b-c?d=e&f=%20#g",
    "MixedCASEWords and snake_case_words and ALLCAPS",
    "…!!!???---___===~~~///\n///",
    "३४५ ٣٤٥ 12３４",
]

PRES = ["smollm", "gpt-2", "default", "qwen2", "llama-bpe", "smaug-bpe", "tekken"]


def serve(path: pathlib.Path) -> xllamacpp.Server:
    parameters = xllamacpp.CommonParams()
    parameters.model.path = str(path)
    parameters.n_ctx = 64
    parameters.warmup = False
    parameters.port = 0
    parameters.verbosity = -1
    return xllamacpp.Server(parameters)


def tokenize(server: xllamacpp.Server, text: str) -> list[int]:
    body = json.dumps({"content": text, "add_special": True, "parse_special": True}).encode()
    request = urllib.request.Request(f"{server.listening_address}/tokenize", body, {"content-type": "application/json"})
    with urllib.request.urlopen(request) as answer:
        tokens: list[int] = json.load(answer)["tokens"]
        return tokens


def main() -> None:
    source = pathlib.Path(sys.argv[1])
    lines = []
    with tempfile.TemporaryDirectory() as folder:
        for pre in PRES:
            path = pathlib.Path(folder, f"{pre}.gguf")
            subprocess.run(["gguf-new-metadata", "--pre-tokenizer", pre, source, path], check=True)
            server = serve(path)
            for text in TEXTS:
                lines.append(json.dumps({"pre": pre, "text": text, "tokens": tokenize(server, text)}))
            path.unlink()
    cases = pathlib.Path(__file__).with_name("cases.json")
    cases.write_text("[\n" + ",\n".join(lines) + "\n]\n")


if __name__ == "__main__":
    main()
