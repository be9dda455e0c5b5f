//! The only printer: data on stdout, progress and messages on stderr.
//!
//! stdout belongs to data alone: descriptor 1 is pointed at stderr from the start, so that nothing that runs inside the
//! process (Python, its extensions) can write into what a script reads.

use std::fmt::Display;
use std::fs::File;
use std::io::{IsTerminal, Write};
use std::process::ExitCode;
use std::sync::Mutex;
use std::time::Duration;

use anyhow::Result;
use indicatif::{HumanDuration, MultiProgress, ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};
use serde::Serialize;

use crate::bake::part::Part;
use crate::bake::pipeline::{PartState, Progress};
use crate::checkpoint::hub;
use crate::cli::Global;
use crate::coremltools;
use crate::error::{self, Fault, OrFault, Status};

/// The program's mouth.
pub struct Ui {
    stdout: Mutex<File>,
    json: bool,
    quiet: bool,
    verbose: bool,
    bars: MultiProgress,
    terminal: bool,
}

impl Ui {
    /// Takes over stdout.
    ///
    /// # Errors
    /// stdout or stderr is closed.
    pub fn new(global: &Global) -> Result<Self> {
        let stdout = rustix::io::dup(rustix::stdio::stdout())
            .and_then(|real| rustix::stdio::dup2_stdout(rustix::stdio::stderr()).map(|()| real))
            .or_fault(|| Fault::environment("cannot use stdout and stderr"))?;
        rustix::io::fcntl_setfd(&stdout, rustix::io::FdFlags::CLOEXEC)
            .or_fault(|| Fault::environment("cannot keep stdout from child processes"))?;
        let terminal = std::io::stderr().is_terminal() && !global.quiet && std::env::var_os("CI").is_none();
        let target = if terminal { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        Ok(Self {
            stdout: Mutex::new(File::from(stdout)),
            json: global.json,
            quiet: global.quiet,
            verbose: global.verbose,
            bars: MultiProgress::with_draw_target(target),
            terminal,
        })
    }

    /// Whether nothing but data, warnings and errors is wanted.
    pub fn is_quiet(&self) -> bool {
        self.quiet
    }

    /// Whether `--json` was given.
    pub fn is_json(&self) -> bool {
        self.json
    }

    /// A line of data on stdout. A reader that went away is no error.
    ///
    /// # Errors
    /// stdout cannot be written, for instance because its disk is full.
    pub fn data(&self, text: impl Display) -> Result<()> {
        let mut stdout = self.stdout.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        match self.bars.suspend(|| writeln!(stdout, "{text}")) {
            Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
                Err(error).or_fault(|| Fault::input("cannot write to stdout"))
            }
            _ => Ok(()),
        }
    }

    /// One JSON document on stdout.
    ///
    /// # Errors
    /// As [`Ui::data`].
    pub fn json(&self, value: &impl Serialize) -> Result<()> {
        self.data(serde_json::to_string_pretty(value)?)
    }

    /// A part of a text on stdout, as it is; tells whether there still is a reader.
    ///
    /// # Errors
    /// As [`Ui::data`].
    pub fn stream(&self, text: &str) -> Result<bool> {
        let mut stdout = self.stdout.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        match self.bars.suspend(|| stdout.write_all(text.as_bytes())) {
            Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(false),
            written => written.or_fault(|| Fault::input("cannot write to stdout")).map(|()| true),
        }
    }

    /// A table on stdout: columns as wide as their widest cell; those in `right` are aligned right.
    ///
    /// # Errors
    /// As [`Ui::data`].
    pub fn table(&self, header: &[&str], rows: &[Vec<String>], right: &[usize]) -> Result<()> {
        table(header, rows, right).into_iter().try_for_each(|line| self.data(line))
    }

    /// A table that was asked for beside the data: as [`Ui::table`], on stderr, also with `-q`.
    pub fn aside(&self, header: &[&str], rows: &[Vec<String>], right: &[usize]) {
        table(header, rows, right).into_iter().for_each(|line| self.message(line));
    }

    /// A message about what goes on; silent with `-q`.
    pub fn note(&self, text: impl Display) {
        if !self.quiet {
            self.message(text);
        }
    }

    /// A warning.
    pub fn warn(&self, text: impl Display) {
        self.message(format!("anebake: warning: {text}"));
    }

    fn message(&self, text: impl Display) {
        // One write: the lines of bakes that share a log stay whole.
        let line = format!("{text}\n");
        self.bars.suspend(|| drop(std::io::stderr().write_all(line.as_bytes())));
    }

    /// Prints an error with its causes and hints.
    pub fn report(&self, error: &anyhow::Error) {
        drop(self.bars.clear());
        report(error, self.verbose);
    }

    /// As [`Ui::report`], where no `Ui` could be made.
    pub fn report_without(error: &anyhow::Error) -> ExitCode {
        report(error, false);
        ExitCode::from(error::status(error) as u8)
    }

    /// Prints what clap has to say: help and version on stdout, what is wrong with the command line on stderr.
    pub fn report_usage(error: &clap::Error) -> ExitCode {
        if !error.use_stderr() {
            drop(error.print());
            return ExitCode::SUCCESS;
        }
        let rendered = error.render();
        let text = if std::io::stderr().is_terminal() { rendered.ansi().to_string() } else { rendered.to_string() };
        let prefix = if rendered.to_string().starts_with("error:") { "anebake: " } else { "" };
        drop(write!(std::io::stderr(), "{prefix}{text}"));
        ExitCode::from(Status::Usage as u8)
    }

    /// Progress of a bake of `total` parts.
    pub fn bake_progress(&self, total: usize) -> BakeProgress<'_> {
        let bar = self.bars.add(ProgressBar::new(total as u64));
        bar.set_style(style("{msg:20} [{bar:30}] {pos}/{len} parts, {left}"));
        bar.set_message("baking");
        if self.terminal {
            bar.enable_steady_tick(Duration::from_millis(100));
        }
        BakeProgress { ui: self, bar, total, lines: Mutex::new(Vec::new()) }
    }
}

/// Lines of a table; without a header where that is empty.
fn table(header: &[&str], rows: &[Vec<String>], right: &[usize]) -> Vec<String> {
    let head: Vec<String> = header.iter().map(ToString::to_string).collect();
    let all = || (!head.is_empty()).then_some(&head).into_iter().chain(rows);
    let width = |column: usize| all().filter_map(|row| row.get(column)).map(|c| c.chars().count()).max();
    let line = |row: &Vec<String>| {
        let cells = row.iter().enumerate().map(|(column, cell)| {
            let width = width(column).unwrap_or_default();
            if right.contains(&column) { format!("{cell:>width$}") } else { format!("{cell:<width$}") }
        });
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    all().map(line).collect()
}

/// `{left}` is the time left, or the time that went by while nothing tells how long it will take.
fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template)
        .unwrap_or_else(|_| ProgressStyle::default_bar())
        .progress_chars("=> ")
        .with_key("left", |state: &ProgressState, text: &mut dyn std::fmt::Write| {
            let known = state.pos() > 0;
            let (time, what) = if known { (state.eta(), "left") } else { (state.elapsed(), "so far") };
            let _ = write!(text, "{:#} {what}", HumanDuration(time));
        })
}

fn report(error: &anyhow::Error, verbose: bool) {
    let mut stderr = std::io::stderr().lock();
    let mut causes = error.chain();
    let mut text = String::new();
    if let Some(outer) = causes.next() {
        text.push_str(&format!("anebake: error: {outer}\n"));
    }
    for cause in causes {
        text.push_str(&format!("  caused by: {cause}\n"));
    }
    for hint in error::hints(error) {
        text.push_str(&format!("  hint: {hint}\n"));
    }
    if verbose && let Some(traceback) = coremltools::traceback(error) {
        text.push_str(&format!("{traceback}\n"));
    }
    drop(stderr.write_all(text.as_bytes()));
}

/// A number of bytes for people: 1024-based, three digits.
pub fn bytes(count: u64) -> String {
    indicatif::BinaryBytes(count).to_string()
}

/// Progress of a bake: bars on a terminal, lines elsewhere.
pub struct BakeProgress<'a> {
    ui: &'a Ui,
    bar: ProgressBar,
    total: usize,
    lines: Mutex<Vec<(Part, ProgressBar)>>,
}

impl BakeProgress<'_> {
    fn line(&self, part: Part, text: Option<&str>) {
        if !self.ui.terminal {
            return;
        }
        let mut lines = self.lines.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let known = lines.iter().position(|(known, _)| *known == part);
        match (known, text) {
            (Some(at), Some(text)) => lines[at].1.set_message(text.to_owned()),
            (Some(at), None) => lines.remove(at).1.finish_and_clear(),
            (None, Some(text)) => {
                let line = ProgressBar::new_spinner()
                    .with_style(style("  {prefix} {msg}"))
                    .with_prefix(part.name())
                    .with_message(text.to_owned());
                let at = lines.partition_point(|(known, _)| *known < part);
                let below = lines.get(at).map_or(&self.bar, |(_, line)| line);
                let line = self.ui.bars.insert_before(below, line);
                line.tick();
                lines.insert(at, (part, line));
            }
            (None, None) => {}
        }
    }

    fn done(&self, part: Part, what: &str) {
        self.line(part, None);
        let _in_order = self.lines.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        self.bar.inc(1);
        if !self.ui.terminal {
            let position = self.bar.position();
            self.ui.note(format!("{:<9} {what}  ({position}/{})", part.name(), self.total));
        }
    }
}

impl Drop for BakeProgress<'_> {
    fn drop(&mut self) {
        for (_, line) in self.lines.lock().unwrap_or_else(std::sync::PoisonError::into_inner).drain(..) {
            line.finish_and_clear();
        }
        self.bar.finish_and_clear();
    }
}

impl Progress for BakeProgress<'_> {
    fn part(&self, part: Part, state: PartState) {
        match state {
            PartState::Hashing => self.line(part, Some("reading")),
            PartState::Waiting => self.line(part, None),
            PartState::Baking => self.line(part, Some("baking")),
            PartState::Cached => self.done(part, "cached"),
            PartState::Baked { bytes: size, seconds } => {
                self.done(part, &format!("baked   {}  {seconds:.2} s", bytes(size)));
            }
        }
    }

    fn template_started(&self) {
        self.bar.set_message("making the template");
        if !self.ui.terminal {
            self.ui.note("template   being made by coremltools");
        }
    }

    fn template_ready(&self, seconds: f64) {
        self.bar.set_message("baking");
        if !self.ui.terminal {
            self.ui.note(format!("template   ready  {seconds:.2} s"));
        }
        self.bar.reset_eta();
    }
}

/// Progress of downloads: a bar on a terminal, two lines a file elsewhere.
pub struct DownloadProgress<'a> {
    ui: &'a Ui,
    bar: Mutex<Option<ProgressBar>>,
}

impl Ui {
    /// Progress of downloads.
    pub fn download_progress(&self) -> DownloadProgress<'_> {
        DownloadProgress { ui: self, bar: Mutex::new(None) }
    }
}

impl DownloadProgress<'_> {
    fn bar(&self) -> std::sync::MutexGuard<'_, Option<ProgressBar>> {
        self.bar.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

impl hub::Progress for DownloadProgress<'_> {
    fn start(&self, file: &str, size: u64) {
        if !self.ui.terminal {
            self.ui.note(format!("fetching   {file}  {}", bytes(size)));
        }
        let bar = self.ui.bars.add(ProgressBar::new(size));
        bar.set_style(style("{msg} [{wide_bar}] {binary_bytes}/{binary_total_bytes}, {left}"));
        bar.set_message(file.to_owned());
        *self.bar() = Some(bar);
    }

    fn advance(&self, count: u64) {
        if let Some(bar) = &*self.bar() {
            bar.inc(count);
        }
    }

    fn finish(&self) {
        if let Some(bar) = self.bar().take() {
            bar.finish_and_clear();
        }
    }
}

/// Progress over named steps: a bar on a terminal, a line for each elsewhere.
pub struct StepProgress<'a> {
    ui: &'a Ui,
    bar: ProgressBar,
}

impl Ui {
    /// Progress of something that has named steps.
    pub fn step_progress(&self, what: &str) -> StepProgress<'_> {
        let bar = self.bars.add(ProgressBar::new(0));
        bar.set_style(style("{prefix} [{bar:30}] {pos}/{len}, {left}  {msg}"));
        bar.set_prefix(what.to_owned());
        StepProgress { ui: self, bar }
    }
}

impl StepProgress<'_> {
    /// `done` of `total` steps are done, `step` comes next.
    pub fn show(&self, done: usize, total: usize, step: &str) {
        self.bar.set_length(total as u64);
        self.bar.set_position(done as u64);
        self.bar.set_message(step.to_owned());
        if !self.ui.terminal {
            self.ui.note(format!("{}  {step}  ({}/{total})", self.bar.prefix(), done + 1));
        }
    }
}

impl Drop for StepProgress<'_> {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

/// Progress over a number of bytes: a bar on a terminal, nothing elsewhere.
pub struct ByteProgress(ProgressBar);

impl Ui {
    /// Progress over a number of bytes.
    pub fn byte_progress(&self, what: &'static str) -> ByteProgress {
        let bar = self.bars.add(ProgressBar::new(0));
        bar.set_style(style("{msg} [{bar:30}] {binary_bytes}/{binary_total_bytes}, {left}"));
        bar.set_message(what);
        ByteProgress(bar)
    }
}

impl ByteProgress {
    /// `done` of `total` bytes are done.
    pub fn show(&self, done: u64, total: u64) {
        self.0.set_length(total);
        self.0.set_position(done);
    }
}

impl Drop for ByteProgress {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

/// Says that the process was interrupted, and silences all others.
pub(crate) fn interrupted(bakes_nothing: bool) {
    let what = if bakes_nothing { "" } else { "; finished blocks are in the cache, the same command resumes" };
    let mut stderr = std::io::stderr().lock();
    drop(
        stderr.write_all(
            format!(
                "
anebake: interrupted{what}
"
            )
            .as_bytes(),
        ),
    );
    // The last word: the process ends with the lock held, and what else a thread wants to say waits in vain.
    std::mem::forget(stderr);
}
