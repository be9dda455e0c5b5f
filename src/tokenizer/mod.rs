//! Text to tokens and back.
//!
//! Owns [`Tokenizer`], over the crate `tokenizers`, and how the vocabulary of a GGUF file becomes a Hugging Face
//! `tokenizer.json` ([`gguf`]), and conversations as text ([`chat`]). Which files a checkpoint carries is left to
//! `checkpoint`.

pub mod chat;
pub mod gguf;
mod pre;
mod stream;
#[cfg(test)]
mod tests;

use std::path::Path;

use anyhow::{Context, Result, bail};
use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

use crate::error::{Fault, OrFault};

pub use stream::Stream;

/// What a checkpoint carries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenizerFiles {
    /// Bytes of `tokenizer.json`.
    pub tokenizer: Vec<u8>,
    /// Bytes of `tokenizer_config.json`.
    pub config: Option<Vec<u8>>,
    /// Token that begins a text, where the model has one. Whether encoding adds it is told by `tokenizer`.
    pub bos: Option<u32>,
    /// Tokens that end a text or a turn, the main one first.
    pub eos: Vec<u32>,
    /// Jinja template of a conversation.
    pub chat_template: Option<String>,
}

/// A loaded `tokenizer.json`.
pub struct Tokenizer(tokenizers::Tokenizer);

impl Tokenizer {
    /// Loads a `tokenizer.json`.
    ///
    /// # Errors
    /// An input fault that names the file: it cannot be read or is no `tokenizer.json`.
    pub fn from_file(path: &Path) -> Result<Self> {
        let bytes = std::fs::read(path).or_fault(|| Fault::input(format!("cannot read `{}`", path.display())))?;
        Self::from_bytes(&bytes).or_fault(|| Fault::input(format!("`{}` is no usable tokenizer", path.display())))
    }

    /// Loads the bytes of a `tokenizer.json`.
    ///
    /// # Errors
    /// It is malformed, or of a kind that the crate `tokenizers` does not know.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        let document: Document = serde_json::from_slice(bytes)?;
        document.model.check()?;
        let mut inner = tokenizers::Tokenizer::from_bytes(bytes).map_err(anyhow::Error::from_boxed)?;
        // Both are for batches; a prompt is never cut or filled.
        inner.with_truncation(None).map_err(anyhow::Error::from_boxed)?;
        inner.with_padding(None);
        Ok(Self(inner))
    }

    /// Tokens of `text`. Special tokens that are spelled in it are recognised. `special`: with what the model wants
    /// around a text, for instance a token that begins it.
    ///
    /// # Errors
    /// The tokenizer has no token for a part of the text and none for the unknown.
    pub fn encode(&self, text: &str, special: bool) -> Result<Vec<u32>> {
        let encoding = self.0.encode_fast(text, special).map_err(anyhow::Error::from_boxed).context("cannot encode")?;
        Ok(encoding.get_ids().to_vec())
    }

    /// Text of tokens. Special tokens and numbers that are no tokens give nothing; bytes that are no UTF-8 give U+FFFD.
    ///
    /// # Errors
    /// The tokenizer's decoder fails.
    pub fn decode(&self, tokens: &[u32]) -> Result<String> {
        self.0.decode(tokens, true).map_err(anyhow::Error::from_boxed).context("cannot decode")
    }

    /// Text of tokens that come one by one.
    pub fn stream(&self) -> Stream<'_> {
        Stream::new(self)
    }

    /// How a token is spelled in the vocabulary.
    pub fn spelling(&self, token: u32) -> Option<String> {
        self.0.id_to_token(token)
    }
}

/// What must be looked at before the crate `tokenizers` reads the file: it panics where the two parts of a merge are
/// longer than every token, or its right part shorter than the prefix of continuing parts.
#[derive(Deserialize)]
struct Document {
    model: Model,
}

#[derive(Deserialize)]
struct Model {
    #[serde(default)]
    vocab: Longest,
    #[serde(default)]
    merges: Merges,
    #[serde(default)]
    continuing_subword_prefix: Option<String>,
}

impl Model {
    fn check(&self) -> Result<()> {
        let prefix = self.continuing_subword_prefix.as_deref().unwrap_or_default().len();
        if let Some(shortest) = self.merges.shortest_right.filter(|shortest| *shortest < prefix) {
            bail!("a merge's right part has {shortest} bytes, the prefix of such parts {prefix}");
        }
        let longest = self.merges.longest.saturating_sub(prefix);
        if longest > self.vocab.0 {
            bail!("a merge makes {longest} bytes, the longest token has {}", self.vocab.0);
        }
        Ok(())
    }
}

/// Bytes of the longest token of a vocabulary, where it is a map.
#[derive(Default)]
struct Longest(usize);

/// Bytes of the longest merge, and of the shortest right part.
#[derive(Default)]
struct Merges {
    longest: usize,
    shortest_right: Option<usize>,
}

impl<'de> Deserialize<'de> for Longest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Keys;
        impl<'de> Visitor<'de> for Keys {
            type Value = Longest;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a vocabulary")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Longest, A::Error> {
                let mut longest = 0;
                while let Some(Length(length)) = map.next_key()? {
                    map.next_value::<IgnoredAny>()?;
                    longest = longest.max(length);
                }
                Ok(Longest(longest))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Longest, A::Error> {
                while list.next_element::<IgnoredAny>()?.is_some() {}
                Ok(Longest(usize::MAX))
            }
        }
        deserializer.deserialize_any(Keys)
    }
}

impl<'de> Deserialize<'de> for Merges {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct List;
        impl<'de> Visitor<'de> for List {
            type Value = Merges;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("merges")
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Merges, A::Error> {
                let mut merges = Merges::default();
                while let Some((all, right)) = list.next_element_seed(Pair)? {
                    merges.longest = merges.longest.max(all);
                    merges.shortest_right = Some(merges.shortest_right.map_or(right, |shortest| shortest.min(right)));
                }
                Ok(merges)
            }
        }
        deserializer.deserialize_seq(List)
    }
}

/// Bytes of a merge, and of its right part: `["a", "b"]`, or `"a b"` in older files.
struct Pair;

impl<'de> DeserializeSeed<'de> for Pair {
    type Value = (usize, usize);
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Pair {
    type Value = (usize, usize);
    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a merge of two tokens")
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
        let (mut all, mut last) = (0, 0);
        while let Some(Length(length)) = list.next_element()? {
            all += length;
            last = length;
        }
        Ok((all, last))
    }
    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Self::Value, E> {
        let right = text.rsplit(' ').next().unwrap_or_default().len();
        Ok((text.len().saturating_sub(1), right))
    }
}

/// Bytes of a string.
struct Length(usize);

impl<'de> Deserialize<'de> for Length {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Text;
        impl Visitor<'_> for Text {
            type Value = Length;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a string")
            }
            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Length, E> {
                Ok(Length(text.len()))
            }
        }
        deserializer.deserialize_str(Text)
    }
}
