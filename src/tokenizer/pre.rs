//! The pre-tokenizers that `tokenizer.ggml.pre` names, as Hugging Face writes them.
//!
//! A name stands for a model's own `tokenizer.json`; llama.cpp's `llama-vocab.cpp` lists the names. Only those whose
//! rules are known are here: a wrong one gives other tokens without an error.

use serde_json::{Value, json};

/// Rules of a byte-level BPE.
pub(super) struct Rules {
    /// `normalizer`.
    pub(super) normalizer: Value,
    /// `pre_tokenizer`.
    pub(super) pre_tokenizer: Value,
    /// `model.ignore_merges`: a word that is a token is that token, whatever the merges say.
    pub(super) ignore_merges: bool,
    /// Whether a text begins with `bos` where `tokenizer.ggml.add_bos_token` is not there.
    pub(super) add_bos: bool,
}

const QWEN2: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// Where the converter did not know the model.
const DEFAULT: [&str; 4] = [
    r"[\p{P}\$\+<=>\^~\|]+",
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)",
    r"\p{N}+",
    r"[0-9][0-9][0-9]",
];

/// Names that [`rules`] knows, for messages.
pub(super) const KNOWN: &str = "`smollm`, `qwen2`, `llama-bpe`, `gpt-2`, `default` and those that equal them";

/// The rules that a name stands for.
pub(super) fn rules(pre: &str) -> Option<Rules> {
    let plain = |pre_tokenizer| Rules { normalizer: Value::Null, pre_tokenizer, ignore_merges: false, add_bos: false };
    Some(match pre {
        "gpt-2" | "phi-2" | "olmo" | "mpt" => plain(byte_level(true)),
        "smollm" | "starcoder" | "refact" | "codeshell" => {
            plain(sequence(vec![json!({"type": "Digits", "individual_digits": true}), byte_level(true)]))
        }
        "default" => plain(sequence(DEFAULT.map(split).into_iter().chain([byte_level(false)]).collect())),
        "qwen2" => {
            Rules { normalizer: json!({"type": "NFC"}), ..plain(sequence(vec![split(QWEN2), byte_level(false)])) }
        }
        "deepseek-r1-qwen" => plain(sequence(vec![split(QWEN2), byte_level(false)])),
        "smaug-bpe" => plain(sequence(vec![split(LLAMA3), byte_level(false)])),
        "llama-bpe" | "llama3" | "llama-v3" | "falcon3" => {
            Rules { ignore_merges: true, add_bos: true, ..plain(sequence(vec![split(LLAMA3), byte_level(false)])) }
        }
        "tekken" => {
            Rules { ignore_merges: true, add_bos: true, ..plain(sequence(vec![split(TEKKEN), byte_level(false)])) }
        }
        _ => return None,
    })
}

fn sequence(parts: Vec<Value>) -> Value {
    json!({"type": "Sequence", "pretokenizers": parts})
}

fn split(regex: &str) -> Value {
    json!({"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": false})
}

/// `regex`: split by GPT-2's rule first.
pub(super) fn byte_level(regex: bool) -> Value {
    json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": regex})
}
