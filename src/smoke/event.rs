//! What a child tells: one JSON line after each step, so that a crash keeps what was done.

use std::fmt;
use std::fs::File;
use std::io::Write;
use std::path::Path;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use super::numerics::Comparison;
use crate::runner::coreml::Placement;

const EVENTS: &str = "events.jsonl";

/// A step of a package's way through Core ML.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    /// Package to compiled model.
    Compile,
    /// Compiled model to something that runs; here Core ML compiles for the Neural Engine.
    Load,
    /// Where each op is planned to run.
    Plan,
    /// Making states.
    State,
    /// The calls that are compared.
    Predict,
    /// The calls that are timed.
    Repeat,
}

impl Stage {
    /// The word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Compile => "compile",
            Self::Load => "load",
            Self::Plan => "plan",
            Self::State => "state",
            Self::Predict => "predict",
            Self::Repeat => "repeat",
        }
    }
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum Event {
    /// A stage begins: if nothing follows, it is what the child died of.
    Begun { stage: Stage },
    /// The package is compiled.
    Compiled { seconds: f64, cached: bool },
    /// A function, or the whole chain, is loaded.
    Loaded { function: String, seconds: f64 },
    /// A function's plan is known.
    Planned { placement: Placement },
    /// States are made.
    Ready,
    /// A call was made and compared.
    Predicted { function: String, seconds: f64, outputs: Vec<Comparison> },
    /// The timed calls of a function were made.
    Repeated { function: String, seconds: Vec<f64> },
    /// A token of the chain, and the seconds since it was given the prompt.
    Token { token: u32, seconds: f64 },
    /// The most memory that the child had at once.
    Memory { bytes: u64 },
    /// Something failed in an orderly way; nothing follows.
    Failed { text: String, domain: Option<String>, code: Option<i64> },
    /// All was done; nothing follows.
    Done,
}

/// Writes the lines of a child.
pub(super) struct Log(File);

impl Log {
    /// Begins the file of `folder`.
    pub(super) fn new(folder: &Path) -> Result<Self> {
        let path = folder.join(EVENTS);
        let file = File::options().append(true).create(true).open(&path);
        Ok(Self(file.with_context(|| format!("cannot write `{}`", path.display()))?))
    }

    /// Writes a line, in one piece.
    pub(super) fn tell(&mut self, event: &Event) -> Result<()> {
        let mut line = serde_json::to_vec(event)?;
        line.push(b'\n');
        self.0.write_all(&line).context("cannot write an event")
    }
}

/// The lines that a child wrote into `folder`: events, and the first line that is none. A line that was cut off by the
/// child's end is left out.
pub(super) fn read(folder: &Path) -> (Vec<Event>, Option<String>) {
    let bytes = std::fs::read(folder.join(EVENTS)).unwrap_or_default();
    let whole = bytes.iter().rposition(|&byte| byte == b'\n').map_or(0, |last| last + 1);
    let mut events = Vec::new();
    for line in bytes[..whole].split(|&byte| byte == b'\n').filter(|line| !line.is_empty()) {
        match serde_json::from_slice(line) {
            Ok(event) => events.push(event),
            Err(_) => return (events, Some(String::from_utf8_lossy(line).chars().take(200).collect())),
        }
    }
    (events, None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_read_back_up_to_a_line_that_is_cut_off_or_none() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(read(folder.path()), (vec![], None));
        let events = [
            Event::Begun { stage: Stage::Compile },
            Event::Compiled { seconds: 0.25, cached: false },
            Event::Planned { placement: Placement::new("decode", &[]) },
            Event::Failed { text: "no".into(), domain: Some("com.apple.CoreML".into()), code: Some(-14) },
        ];
        let mut log = Log::new(folder.path()).unwrap();
        events.iter().for_each(|event| log.tell(event).unwrap());
        assert_eq!(read(folder.path()), (events.to_vec(), None));
        let path = folder.path().join(EVENTS);
        let append = |text: &str| File::options().append(true).open(&path).unwrap().write_all(text.as_bytes()).unwrap();
        append("{\"event\":\"do");
        assert_eq!(read(folder.path()), (events.to_vec(), None));
        append("nut\"}\n{\"event\":\"done\"}\n");
        assert_eq!(read(folder.path()), (events.to_vec(), Some("{\"event\":\"donut\"}".to_owned())));
    }
}
