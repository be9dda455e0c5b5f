//! What Core ML says when a call fails.

use std::fmt;

/// An error or exception of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// What was called, as a verb: "compile", "load".
    pub call: &'static str,
    /// The error's domain, or the exception's name.
    pub domain: String,
    /// The error's code; none of an exception.
    pub code: Option<i64>,
    /// Its text, and those of the errors that led to it.
    pub text: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Core ML cannot {}: {} ({}", self.call, self.text, self.domain)?;
        match self.code {
            Some(code) => write!(f, " {code})"),
            None => f.write_str(")"),
        }
    }
}

impl std::error::Error for Failure {}
