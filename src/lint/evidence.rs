//! Where a rule was learned, and how much that is worth.

use serde::{Serialize, Serializer};

/// The page of an issue or pull request.
macro_rules! thread {
    ($repository:literal, $number:literal) => {
        concat!("https://github.com/", $repository, "/issues/", $number)
    };
}

/// A file of a repository.
macro_rules! page {
    ($repository:literal, $path:literal) => {
        concat!("https://github.com/", $repository, "/blob/main/", $path)
    };
}

pub(super) use {page, thread};

/// How much a source is worth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Confidence {
    /// Two reports or more that do not know of each other.
    Corroborated,
    /// One report.
    Single,
    /// Another report says the opposite.
    Contradicted,
    /// Apple's documentation, or the compiler's own text.
    Vendor,
    /// Found in private interfaces or by guessing: a hint.
    Hint,
    /// Computed or measured with this program.
    Measured,
}

impl Confidence {
    /// In words.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Corroborated => "corroborated",
            Self::Single => "single report",
            Self::Contradicted => "contradicted",
            Self::Vendor => "vendor",
            Self::Hint => "hint",
            Self::Measured => "measured",
        }
    }

    /// Whether it is enough to refuse something.
    pub fn is_firm(self) -> bool {
        matches!(self, Self::Corroborated | Self::Vendor | Self::Measured)
    }
}

impl Serialize for Confidence {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

/// A source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Evidence {
    /// Address.
    pub link: &'static str,
    /// Day, month or year, as ISO 8601.
    pub date: &'static str,
    /// How much it is worth.
    pub confidence: Confidence,
}

/// A source.
pub(super) const fn seen(confidence: Confidence, date: &'static str, link: &'static str) -> Evidence {
    Evidence { link, date, confidence }
}
