//! Text of tokens that come one by one.

use anyhow::Result;

use super::Tokenizer;

/// So many bytes can wait for the rest of their character.
const INCOMPLETE: usize = 3;

/// Gives text as it becomes whole characters. What it gave, end to end, is what decoding all tokens at once gives,
/// broken characters apart.
pub struct Stream<'a> {
    tokenizer: &'a Tokenizer,
    /// A token with a text of its own, and that text: stands for all that was given before `tokens`, so that what
    /// happens at the begin of a text does not happen again.
    anchor: Option<(u32, String)>,
    tokens: Vec<u32>,
    /// Text of `tokens` that was given.
    given: String,
}

impl<'a> Stream<'a> {
    pub(super) fn new(tokenizer: &'a Tokenizer) -> Self {
        let token = tokenizer.encode("a", false).ok().and_then(|tokens| tokens.last().copied());
        let anchor = token.and_then(|token| Some((token, tokenizer.decode(&[token]).ok()?)));
        let anchor = anchor.filter(|(_, text)| text == "a");
        Self { tokenizer, anchor, tokens: Vec::new(), given: String::new() }
    }

    /// The text that `token` makes whole.
    ///
    /// # Errors
    /// The tokenizer's decoder fails.
    pub fn step(&mut self, token: u32) -> Result<Option<String>> {
        self.tokens.push(token);
        let text = self.tokenizer.decode(&self.tokens)?;
        // An incomplete character decodes to as many U+FFFD as it has bytes so far, or to one.
        let trailing = text.chars().rev().take_while(|c| *c == char::REPLACEMENT_CHARACTER).count();
        let waiting = trailing.min(INCOMPLETE) * char::REPLACEMENT_CHARACTER.len_utf8();
        let new = self.give(&text[..text.len() - waiting]);
        if waiting == 0
            && !new.is_empty()
            && let Some((token, text)) = &self.anchor
        {
            self.tokens = vec![*token];
            self.given.clone_from(text);
        }
        Ok((!new.is_empty()).then_some(new))
    }

    /// What is still waiting for the rest of a character that will not come.
    ///
    /// # Errors
    /// The tokenizer's decoder fails.
    pub fn finish(mut self) -> Result<Option<String>> {
        let text = self.tokenizer.decode(&self.tokens)?;
        let new = self.give(&text);
        Ok((!new.is_empty()).then_some(new))
    }

    /// What of `text`, the text of `tokens`, was not given yet.
    fn give(&mut self, text: &str) -> String {
        let common = self.given.chars().zip(text.chars()).take_while(|(a, b)| a == b);
        let start: usize = common.map(|(c, _)| c.len_utf8()).sum();
        let new = text[start..].to_owned();
        if !new.is_empty() {
            text.clone_into(&mut self.given);
        }
        new
    }
}
