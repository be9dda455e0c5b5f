//! The vocabulary of a GGUF file as a Hugging Face `tokenizer.json`.
//!
//! The keys are those of `gguf-py/gguf/constants.py`. `gpt2` is byte-level BPE with its merges; `llama` is
//! SentencePiece's BPE, whose merges follow from the scores of the tokens. The file that comes out is what the crate
//! `tokenizers` would write for the same tokenizer, byte for byte.

use std::collections::HashMap;

use anyhow::{Context, Result, bail};
use serde::Serialize;
use serde::ser::SerializeMap;
use serde_json::{Value, json};

use super::{TokenizerFiles, pre};
use crate::error::Fault;

/// What the keys `tokenizer.*` say.
#[derive(Clone, Debug, Default)]
pub struct Vocabulary<'a> {
    /// `tokenizer.ggml.model`.
    pub model: &'a str,
    /// `tokenizer.ggml.pre`.
    pub pre: Option<&'a str>,
    /// `tokenizer.ggml.tokens`.
    pub tokens: Vec<&'a str>,
    /// `tokenizer.ggml.token_type`.
    pub types: Option<Vec<i64>>,
    /// `tokenizer.ggml.merges`.
    pub merges: Option<Vec<&'a str>>,
    /// `tokenizer.ggml.scores`.
    pub scores: Option<Vec<f32>>,
    /// `tokenizer.ggml.bos_token_id`.
    pub bos: Option<i128>,
    /// `tokenizer.ggml.eos_token_id`.
    pub eos: Option<i128>,
    /// `tokenizer.ggml.eot_token_id`.
    pub eot: Option<i128>,
    /// `tokenizer.ggml.eom_token_id`.
    pub eom: Option<i128>,
    /// `tokenizer.ggml.unknown_token_id`.
    pub unknown: Option<i128>,
    /// `tokenizer.ggml.padding_token_id`.
    pub padding: Option<i128>,
    /// `tokenizer.ggml.add_bos_token`.
    pub add_bos: Option<bool>,
    /// `tokenizer.ggml.add_eos_token`.
    pub add_eos: Option<bool>,
    /// `tokenizer.ggml.add_space_prefix`.
    pub add_space_prefix: Option<bool>,
    /// `tokenizer.chat_template`.
    pub chat_template: Option<&'a str>,
}

/// `enum llama_token_type` of `llama.h`.
const UNKNOWN: i64 = 2;
const CONTROL: i64 = 3;
const USER_DEFINED: i64 = 4;
const BYTE: i64 = 6;

/// Control tokens that end a turn or a text by what they are called; a file names one of them at most.
const ENDS: [&str; 5] = ["<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|endoftext|>", "<|end_of_text|>"];

/// SentencePiece's mark for a space.
const SPACE: &str = "▁";

/// The files that stand for a vocabulary.
///
/// # Errors
/// An input fault that names the key: a kind of tokenizer that is not known, or values that contradict each other.
pub fn files(vocabulary: &Vocabulary<'_>) -> Result<TokenizerFiles> {
    let checked = Checked::new(vocabulary)?;
    let (parts, add_bos) = match vocabulary.model {
        "gpt2" => checked.byte_level()?,
        "llama" => checked.sentence_piece()?,
        other => bail!(
            Fault::input(format!("`tokenizer.ggml.model` is `{other}`; read are `gpt2` and `llama`"))
                .with_hint("use the model's Hugging Face folder, which has a `tokenizer.json`")
        ),
    };
    let add_bos = vocabulary.add_bos.unwrap_or(add_bos);
    let add_eos = vocabulary.add_eos.unwrap_or(false);
    let around = |add: bool, token: Option<u32>, key: &str, what: &str| match (add, token) {
        (false, _) => Ok(None),
        (true, Some(token)) => Ok(Some(token)),
        (true, None) => Err(Fault::input(format!("`tokenizer.ggml.{what}` is true, but there is no `{key}`"))),
    };
    // Where a file does not ask for it, a token that it does not have is not missed.
    let bos = match vocabulary.add_bos {
        Some(add) => around(add, checked.bos, "tokenizer.ggml.bos_token_id", "add_bos_token")?,
        None => checked.bos.filter(|_| add_bos),
    };
    let eos = around(add_eos, checked.eos, "tokenizer.ggml.eos_token_id", "add_eos_token")?;
    let file = File {
        version: "1.0",
        truncation: None,
        padding: None,
        added_tokens: checked.added_tokens(),
        normalizer: parts.normalizer,
        pre_tokenizer: parts.pre_tokenizer,
        post_processor: checked.post_processor(bos, eos),
        decoder: parts.decoder,
        model: Model {
            kind: "BPE",
            dropout: None,
            unk_token: parts.unknown,
            continuing_subword_prefix: None,
            end_of_word_suffix: None,
            fuse_unk: parts.fuse_unknown,
            byte_fallback: parts.byte_fallback,
            ignore_merges: parts.ignore_merges,
            vocab: Vocab(&vocabulary.tokens),
            merges: parts.merges,
        },
    };
    Ok(TokenizerFiles {
        tokenizer: serde_json::to_vec(&file)?,
        config: Some(serde_json::to_vec_pretty(&checked.config(bos.is_some(), eos.is_some()))?),
        bos: checked.bos,
        eos: checked.ends(),
        chat_template: vocabulary.chat_template.map(str::to_owned),
    })
}

/// A vocabulary whose numbers are those of tokens.
struct Checked<'a> {
    source: &'a Vocabulary<'a>,
    ids: HashMap<&'a str, u32>,
    bos: Option<u32>,
    eos: Option<u32>,
    eot: Option<u32>,
    eom: Option<u32>,
    unknown: Option<u32>,
    padding: Option<u32>,
}

/// What depends on the kind of tokenizer.
struct Parts<'a> {
    normalizer: Value,
    pre_tokenizer: Value,
    decoder: Value,
    unknown: Option<&'a str>,
    fuse_unknown: bool,
    byte_fallback: bool,
    ignore_merges: bool,
    merges: Vec<(&'a str, &'a str)>,
}

impl<'a> Checked<'a> {
    fn new(source: &'a Vocabulary<'a>) -> Result<Self> {
        let count = source.tokens.len();
        let lengths =
            [("token_type", source.types.as_ref().map(Vec::len)), ("scores", source.scores.as_ref().map(Vec::len))];
        for (key, length) in lengths {
            if let Some(length) = length.filter(|length| *length != count) {
                bail!(Fault::input(format!(
                    "`tokenizer.ggml.{key}` has {length} values, `tokenizer.ggml.tokens` {count}"
                )));
            }
        }
        let mut ids = HashMap::with_capacity(count);
        for (id, token) in source.tokens.iter().enumerate() {
            let id = u32::try_from(id).ok().context("`tokenizer.ggml.tokens` is too long")?;
            if let Some(before) = ids.insert(*token, id) {
                bail!(Fault::input(format!(
                    "`tokenizer.ggml.tokens` has `{}` twice, as {before} and as {id}",
                    token.escape_debug()
                )));
            }
        }
        let token = |key: &str, id: Option<i128>| match id {
            None => Ok(None),
            Some(id) => match u32::try_from(id).ok().filter(|id| (*id as usize) < count) {
                Some(id) => Ok(Some(id)),
                None => Err(Fault::input(format!(
                    "`tokenizer.ggml.{key}` is {id}, none of the {count} of `tokenizer.ggml.tokens`"
                ))),
            },
        };
        Ok(Self {
            source,
            ids,
            bos: token("bos_token_id", source.bos)?,
            eos: token("eos_token_id", source.eos)?,
            eot: token("eot_token_id", source.eot)?,
            eom: token("eom_token_id", source.eom)?,
            unknown: token("unknown_token_id", source.unknown)?,
            padding: token("padding_token_id", source.padding)?,
        })
    }

    fn text(&self, id: u32) -> &'a str {
        self.source.tokens[id as usize]
    }

    fn kind(&self, id: u32) -> i64 {
        match &self.source.types {
            Some(types) => types[id as usize],
            None if [self.bos, self.eos, self.eot, self.eom].contains(&Some(id)) => CONTROL,
            None => 1,
        }
    }

    fn byte_level(&self) -> Result<(Parts<'a>, bool)> {
        let pre = self.source.pre.ok_or_else(|| unknown_pre("`tokenizer.ggml.pre` is missing"))?;
        let rules =
            pre::rules(pre).ok_or_else(|| unknown_pre(&format!("`tokenizer.ggml.pre` `{pre}` is not known")))?;
        let merges = self.source.merges.as_ref().ok_or_else(|| Fault::input("`tokenizer.ggml.merges` is missing"))?;
        let mut joined = String::new();
        let mut pairs = Vec::with_capacity(merges.len());
        for (index, merge) in merges.iter().enumerate() {
            let fault = |what: String| {
                Fault::input(format!("`tokenizer.ggml.merges` {index}, `{}`, {what}", merge.escape_debug()))
            };
            let pair = merge
                .split_once(' ')
                .filter(|(left, right)| !left.is_empty() && !right.is_empty() && !right.contains(' '));
            let (left, right) = pair.ok_or_else(|| fault("is not two tokens".to_owned()))?;
            joined.clear();
            joined.push_str(left);
            joined.push_str(right);
            for part in [left, right, &joined] {
                if !self.ids.contains_key(part) {
                    bail!(fault(format!("needs `{}`, which is no token", part.escape_debug())));
                }
            }
            pairs.push((left, right));
        }
        let parts = Parts {
            normalizer: rules.normalizer,
            pre_tokenizer: rules.pre_tokenizer,
            decoder: pre::byte_level(true),
            unknown: None,
            fuse_unknown: false,
            byte_fallback: false,
            ignore_merges: rules.ignore_merges,
            merges: pairs,
        };
        Ok((parts, rules.add_bos))
    }

    fn sentence_piece(&self) -> Result<(Parts<'a>, bool)> {
        let replace = |from: &str, to: &str| json!({"type": "Replace", "pattern": {"String": from}, "content": to});
        let prefix = self.source.add_space_prefix.unwrap_or(true);
        let mut normalizers = vec![replace(" ", SPACE)];
        let mut decoders = vec![replace(SPACE, " "), json!({"type": "ByteFallback"}), json!({"type": "Fuse"})];
        if prefix {
            normalizers.insert(0, json!({"type": "Prepend", "prepend": SPACE}));
            decoders.push(json!({"type": "Strip", "content": " ", "start": 1, "stop": 0}));
        }
        let of_kind = |kind: i64| (0..self.source.tokens.len() as u32).find(|id| self.kind(*id) == kind);
        let parts = Parts {
            normalizer: json!({"type": "Sequence", "normalizers": normalizers}),
            pre_tokenizer: Value::Null,
            decoder: json!({"type": "Sequence", "decoders": decoders}),
            unknown: self.unknown.or_else(|| of_kind(UNKNOWN)).map(|id| self.text(id)),
            fuse_unknown: true,
            byte_fallback: of_kind(BYTE).is_some(),
            ignore_merges: false,
            merges: self.merges_by_score()?,
        };
        Ok((parts, true))
    }

    /// Every way to put a token together from two others, the token with the highest score first: `generate_merges`
    /// of `convert_slow_tokenizer.py` in Hugging Face's transformers.
    fn merges_by_score(&self) -> Result<Vec<(&'a str, &'a str)>> {
        let scores = self.source.scores.as_ref().ok_or_else(|| Fault::input("`tokenizer.ggml.scores` is missing"))?;
        if let Some(id) = scores.iter().position(|score| score.is_nan()) {
            bail!(Fault::input(format!("`tokenizer.ggml.scores` {id} is not a number")));
        }
        let mut merges = Vec::new();
        for (id, token) in self.source.tokens.iter().enumerate() {
            if matches!(self.kind(id as u32), UNKNOWN | CONTROL | BYTE) {
                continue;
            }
            let mut ways: Vec<_> = token
                .char_indices()
                .skip(1)
                .enumerate()
                .filter_map(|(chars, (at, _))| {
                    let (left, right) = token.split_at(at);
                    Some((*self.ids.get(left)?, *self.ids.get(right)?, chars, left, right))
                })
                .collect();
            ways.sort_unstable_by_key(|(left, right, ..)| (*left, *right));
            let length = token.chars().count();
            merges.extend(ways.into_iter().map(|(_, _, chars, left, right)| {
                let chars = chars + 1;
                (scores[id], chars, length - chars, left, right)
            }));
        }
        merges.sort_by(|a, b| b.0.total_cmp(&a.0).then_with(|| (b.1, b.2).cmp(&(a.1, a.2))));
        Ok(merges.into_iter().map(|(.., left, right)| (left, right)).collect())
    }

    fn added_tokens(&self) -> Vec<AddedToken<'a>> {
        (0..self.source.tokens.len() as u32)
            .filter_map(|id| {
                let special = match self.kind(id) {
                    UNKNOWN | CONTROL => true,
                    USER_DEFINED => false,
                    _ => return None,
                };
                let content = self.text(id);
                let token = AddedToken {
                    id,
                    content,
                    single_word: false,
                    lstrip: false,
                    rstrip: false,
                    normalized: false,
                    special,
                };
                (!content.is_empty()).then_some(token)
            })
            .collect()
    }

    fn post_processor(&self, bos: Option<u32>, eos: Option<u32>) -> Value {
        if bos.is_none() && eos.is_none() {
            return Value::Null;
        }
        let special = |id: u32, kind: u8| json!({"SpecialToken": {"id": self.text(id), "type_id": kind}});
        let around = |sequence: &str, kind: u8| {
            let before = bos.map(|id| special(id, kind)).into_iter();
            let text = json!({"Sequence": {"id": sequence, "type_id": kind}});
            before.chain([text]).chain(eos.map(|id| special(id, kind))).collect::<Vec<Value>>()
        };
        // The crate sorts them.
        let used: std::collections::BTreeMap<&str, Value> = bos
            .into_iter()
            .chain(eos)
            .map(|id| (self.text(id), json!({"id": self.text(id), "ids": [id], "tokens": [self.text(id)]})))
            .collect();
        let pair = [around("A", 0), around("B", 1)].concat();
        json!({
            "type": "TemplateProcessing",
            "single": around("A", 0),
            "pair": pair,
            "special_tokens": used,
        })
    }

    /// Tokens that end a text or a turn, the file's own first.
    fn ends(&self) -> Vec<u32> {
        let mut ends: Vec<u32> = Vec::new();
        let called = ENDS.iter().filter_map(|name| self.ids.get(name).copied().filter(|id| self.kind(*id) == CONTROL));
        for id in [self.eos, self.eot, self.eom].into_iter().flatten().chain(called) {
            if !ends.contains(&id) {
                ends.push(id);
            }
        }
        ends
    }

    /// `tokenizer_config.json`, for readers that want one beside `tokenizer.json`.
    fn config(&self, add_bos: bool, add_eos: bool) -> Value {
        let mut config = json!({
            "tokenizer_class": "PreTrainedTokenizerFast",
            "clean_up_tokenization_spaces": false,
            "add_bos_token": add_bos,
            "add_eos_token": add_eos,
        });
        let named = [
            ("bos_token", self.bos),
            ("eos_token", self.eos),
            ("unk_token", self.unknown),
            ("pad_token", self.padding),
        ];
        for (key, id) in named {
            if let Some(id) = id {
                config[key] = self.text(id).into();
            }
        }
        if let Some(template) = self.source.chat_template {
            config["chat_template"] = template.into();
        }
        config
    }
}

fn unknown_pre(what: &str) -> Fault {
    Fault::input(format!("{what}: how it splits text into words cannot be told; known are {}", pre::KNOWN))
        .with_hint("use the model's Hugging Face folder, which has a `tokenizer.json`")
}

/// `tokenizer.json`, fields in the crate's order.
#[derive(Serialize)]
struct File<'a> {
    version: &'static str,
    truncation: Option<()>,
    padding: Option<()>,
    added_tokens: Vec<AddedToken<'a>>,
    normalizer: Value,
    pre_tokenizer: Value,
    post_processor: Value,
    decoder: Value,
    model: Model<'a>,
}

#[derive(Serialize)]
struct AddedToken<'a> {
    id: u32,
    content: &'a str,
    single_word: bool,
    lstrip: bool,
    rstrip: bool,
    normalized: bool,
    special: bool,
}

#[derive(Serialize)]
struct Model<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    dropout: Option<f32>,
    unk_token: Option<&'a str>,
    continuing_subword_prefix: Option<&'static str>,
    end_of_word_suffix: Option<&'static str>,
    fuse_unk: bool,
    byte_fallback: bool,
    ignore_merges: bool,
    vocab: Vocab<'a>,
    merges: Vec<(&'a str, &'a str)>,
}

/// Tokens and their numbers.
struct Vocab<'a>(&'a [&'a str]);

impl Serialize for Vocab<'_> {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (id, token) in self.0.iter().enumerate() {
            map.serialize_entry(token, &id)?;
        }
        map.end()
    }
}
