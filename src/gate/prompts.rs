//! What the chain is asked: texts, or tokens where there is no tokenizer.

use std::fmt;
use std::path::Path;

use anyhow::Result;
use serde::{Deserialize, Serialize};

use crate::error::{Fault, OrFault};
use crate::tokenizer::Tokenizer;

/// A prompt. In JSON a string, or an array of tokens.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Prompt {
    /// To be tokenized, with what the model wants around a text.
    Text(String),
    /// Tokens as they are fed.
    Tokens(Vec<u32>),
}

impl Prompt {
    /// Reads a file of prompts: one a line, empty lines left out; or a JSON array of texts and of arrays of tokens.
    ///
    /// # Errors
    /// A usage fault that names the file: it cannot be read, is malformed or empty.
    pub fn read(path: &Path) -> Result<Vec<Self>> {
        let fault = |what: &str| Fault::usage(format!("{what} `{}`", path.display()));
        let text = std::fs::read_to_string(path).or_fault(|| fault("cannot read the prompts in"))?;
        let prompts = Self::parse(&text).or_fault(|| {
            fault("there is no JSON array of prompts in")
                .with_hint("write one prompt a line, or [\"a text\", …], or tokens: [[1, 2, 3], …]")
        })?;
        if prompts.is_empty() {
            return Err(fault("there is no prompt in").with_hint("write one prompt a line").into());
        }
        Ok(prompts)
    }

    fn parse(text: &str) -> Result<Vec<Self>> {
        if text.trim_start().starts_with('[') {
            return Ok(serde_json::from_str(text)?);
        }
        let lines = text.lines().map(|line| line.trim_end_matches('\r')).filter(|line| !line.trim().is_empty());
        Ok(lines.map(|line| Self::Text(line.to_owned())).collect())
    }

    /// Its tokens.
    ///
    /// # Errors
    /// A usage fault that names the prompt: it has none, or is a text and there is no tokenizer.
    pub fn tokens(&self, tokenizer: Option<&Tokenizer>) -> Result<Vec<u32>> {
        let tokens = match (self, tokenizer) {
            (Self::Tokens(tokens), _) => tokens.clone(),
            (Self::Text(text), Some(tokenizer)) => {
                tokenizer.encode(text, true).or_fault(|| Fault::input(format!("cannot tokenize {self}")))?
            }
            (Self::Text(_), None) => {
                return Err(Fault::usage(format!("{self} is a text, and the model has no tokenizer"))
                    .with_hint("give tokens: `--prompts FILE` with a JSON array of arrays, [[1, 2, 3], …]")
                    .into());
            }
        };
        if tokens.is_empty() {
            return Err(Fault::usage(format!("{self} has no tokens")).into());
        }
        Ok(tokens)
    }
}

impl fmt::Display for Prompt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = match self {
            Self::Text(text) => shortened(&text.replace(['\n', '\r', '`'], " "), 60),
            Self::Tokens(tokens) => shortened(&format!("{tokens:?}"), 60),
        };
        write!(f, "prompt `{shown}`")
    }
}

/// The first characters of a text.
pub(super) fn shortened(text: &str, most: usize) -> String {
    if text.chars().count() <= most {
        return text.to_owned();
    }
    text.chars().take(most - 1).chain(['…']).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::{Status, hints, status};

    fn read(text: &str) -> Result<Vec<Prompt>> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("p");
        std::fs::write(&path, text).unwrap();
        Prompt::read(&path)
    }

    fn text(text: &str) -> Prompt {
        Prompt::Text(text.to_owned())
    }

    #[test]
    fn lines_and_json_are_both_read() {
        assert_eq!(read("a b \r\n\n  \n c\n").unwrap(), [text("a b "), text(" c")]);
        let json = " [\"a\\nb\", [1, 2], \"\"]\n";
        assert_eq!(read(json).unwrap(), [text("a\nb"), Prompt::Tokens(vec![1, 2]), text("")]);
    }

    #[test]
    fn what_is_no_list_of_prompts_is_a_usage_fault() {
        for (body, message) in [
            ("", "there is no prompt in"),
            ("\n \n", "there is no prompt in"),
            ("[]", "there is no prompt in"),
            ("[1, 2]", "there is no JSON array of prompts in"),
            ("[[-1]]", "there is no JSON array of prompts in"),
            ("[\"a\"", "there is no JSON array of prompts in"),
        ] {
            let error = read(body).unwrap_err();
            assert!(error.to_string().starts_with(message), "{error}");
            assert_eq!(status(&error), Status::Usage);
            assert!(hints(&error).next().is_some());
        }
    }

    #[test]
    fn a_prompt_without_tokens_and_a_text_without_tokenizer_are_refused() {
        let error = text("a\nb").tokens(None).unwrap_err();
        assert_eq!(error.to_string(), "prompt `a b` is a text, and the model has no tokenizer");
        assert_eq!(Prompt::Tokens(vec![]).tokens(None).unwrap_err().to_string(), "prompt `[]` has no tokens");
        assert_eq!(Prompt::Tokens(vec![3]).tokens(None).unwrap(), [3]);
    }
}
