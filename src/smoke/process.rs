//! A child process with a time limit. Nothing that it does is an error here: how it ended is a result.

use std::ffi::OsString;
use std::fs::File;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::event::{self, Event};
use crate::error::{Fault, OrFault};

/// The hidden subcommand that makes a child of this program.
pub const CHILD: &str = "smoke-child";

const LOG: &str = "stderr";
/// How many of the last lines of what the child wrote on stderr are kept.
const LINES: usize = 12;
/// How often is looked whether a child has ended.
const TICK: Duration = Duration::from_millis(20);

/// How a child is started: a program and its arguments, before the folder of the request.
#[derive(Clone, Debug)]
pub(super) struct Program {
    path: PathBuf,
    arguments: Vec<OsString>,
}

impl Program {
    /// This program.
    pub(super) fn this() -> Result<Self> {
        let path = std::env::current_exe().or_fault(|| Fault::environment("cannot tell where this program lies"))?;
        Ok(Self { path, arguments: vec![CHILD.into()] })
    }

    /// Another program.
    #[cfg(test)]
    pub(super) fn other(path: &str, arguments: &[&str]) -> Self {
        Self { path: path.into(), arguments: arguments.iter().map(OsString::from).collect() }
    }
}

/// How a child ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// By itself, with this exit status.
    Exit(i32),
    /// By a signal, by name.
    Signal(String),
    /// It was killed at its time limit.
    Timeout(Duration),
}

/// What a child did.
#[derive(Clone, Debug)]
pub(super) struct Ran {
    pub events: Vec<Event>,
    /// A line that is no event.
    pub garbage: Option<String>,
    pub end: End,
    /// The last lines of its stderr.
    pub log: Vec<String>,
}

/// Runs a child on the request in `folder`, `limit` long at most.
///
/// # Errors
/// It cannot be started.
pub(super) fn run(program: &Program, folder: &Path, limit: Duration) -> Result<Ran> {
    let log = folder.join(LOG);
    let stderr = File::create(&log).with_context(|| format!("cannot write `{}`", log.display()))?;
    let start = Instant::now();
    let child = Command::new(&program.path)
        .args(&program.arguments)
        .arg(folder)
        // Open as long as this process lives: the child ends when it is closed.
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(stderr)
        .spawn();
    let child = child.or_fault(|| Fault::environment(format!("cannot start `{}`", program.path.display())))?;
    let mut child = Killed(child);
    let end = loop {
        if let Some(status) = child.0.try_wait().context("cannot wait for the child process")? {
            break End::of(status);
        }
        if start.elapsed() >= limit {
            break End::Timeout(limit);
        }
        std::thread::sleep(TICK.min(limit));
    };
    drop(child);
    let (events, garbage) = event::read(folder);
    let text = String::from_utf8_lossy(&std::fs::read(&log).unwrap_or_default()).into_owned();
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    let log = lines[lines.len().saturating_sub(LINES)..].iter().map(|line| without_folders(line)).collect();
    Ok(Ran { events, garbage, end, log })
}

impl End {
    fn of(status: ExitStatus) -> Self {
        match (status.code(), status.signal()) {
            (Some(code), _) => Self::Exit(code),
            (None, Some(signal)) => {
                let name = signal_hook::low_level::signal_name(signal);
                Self::Signal(name.map_or_else(|| format!("signal {signal}"), str::to_owned))
            }
            (None, None) => Self::Exit(-1),
        }
    }
}

/// A child that does not outlive this value.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        // It may have ended by itself.
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// Ends this process as soon as its stdin is closed, which the parent's end does: a child that hangs in Core ML must not
/// outlive who would kill it.
pub(super) fn end_with_parent() {
    std::thread::spawn(|| {
        // Nothing is ever written.
        drop(std::io::copy(&mut std::io::stdin(), &mut std::io::sink()));
        let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
    });
}

/// A text without the folders of absolute paths: results are shown to others.
pub(super) fn without_folders(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(start) = rest.find('/') {
        let boundary = rest[..start].chars().next_back().is_none_or(|before| !before.is_alphanumeric());
        let end = rest[start..].find(|c: char| c.is_whitespace() || "\"'`:,;()[]<>".contains(c));
        let end = end.map_or(rest.len(), |length| start + length);
        let path = &rest[start..end];
        if boundary && path.matches('/').count() > 1 {
            let name = path.trim_end_matches('/').rsplit('/').next().unwrap_or_default();
            out.push_str(rest[..start].trim_end_matches("file:"));
            out.push_str(name);
        } else {
            out.push_str(&rest[..end]);
        }
        rest = &rest[end..];
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::smoke::Stage;

    /// A shell's program as a child; `$1` is the folder.
    fn child(script: &str, limit: Duration) -> Ran {
        let folder = tempfile::tempdir().unwrap();
        run(&Program::other("/bin/sh", &["-c", script, "child"]), folder.path(), limit).unwrap()
    }

    const LONG: Duration = Duration::from_secs(600);
    const TELL: &str = r#"echo '{"event":"begun","stage":"predict"}' >> "$1/events.jsonl"; "#;

    #[test]
    fn a_death_by_signal_keeps_what_was_done_and_its_name() {
        for (signal, name) in [("TRAP", "SIGTRAP"), ("KILL", "SIGKILL"), ("SEGV", "SIGSEGV")] {
            let ran = child(&format!("{TELL} echo 'E5RT: no' >&2; kill -{signal} $$"), LONG);
            assert_eq!(ran.end, End::Signal(name.to_owned()));
            assert_eq!(ran.events, [Event::Begun { stage: Stage::Predict }]);
            assert_eq!(ran.log, ["E5RT: no"]);
        }
    }

    #[test]
    fn a_child_that_hangs_is_killed_at_the_limit_with_all_that_it_holds() {
        let limit = Duration::from_millis(300);
        let ran = child(&format!("{TELL} exec sleep 1000"), limit);
        assert_eq!(ran.end, End::Timeout(limit));
        assert!(ran.events.len() <= 1);
    }

    #[test]
    fn what_is_no_event_is_kept_and_an_exit_has_its_status() {
        let ran = child(&format!("{TELL} echo garbage >> \"$1/events.jsonl\"; exit 7"), LONG);
        assert_eq!((ran.end, ran.garbage.as_deref()), (End::Exit(7), Some("garbage")));
        assert_eq!(ran.events.len(), 1);
        let ran = child("seq 1 100 >&2", LONG);
        assert_eq!((ran.end, ran.log.len(), ran.log[11].as_str()), (End::Exit(0), LINES, "100"));
    }

    #[test]
    fn a_program_that_cannot_be_started_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let error = run(&Program::other("/nowhere/program", &[]), folder.path(), LONG).unwrap_err();
        assert!(error.to_string().starts_with("cannot start `/nowhere/program`"), "{error}");
    }

    #[test]
    fn a_child_has_a_stdin_that_stays_open() {
        let ran = child("read line; exit 3", Duration::from_millis(300));
        assert!(matches!(ran.end, End::Timeout(_)), "{:?}", ran.end);
    }

    #[test]
    fn paths_lose_their_folders_and_other_text_stays() {
        for (text, kept) in [
            (
                "file '/var/folders/x1/model.mlmodelc/model.mil' with error code: -14",
                "file 'model.mil' with error code: -14",
            ),
            ("file:///private/tmp/a.mlmodelc/", "a.mlmodelc"),
            ("ANECCompile() FAILED and/or more, 1/2", "ANECCompile() FAILED and/or more, 1/2"),
            ("at /Users/someone/out/block-00.mlpackage: no", "at block-00.mlpackage: no"),
            ("", ""),
        ] {
            assert_eq!(without_folders(text), kept);
        }
    }
}
