//! What a failure means to the caller of the program: its exit status and what to do about it.
//!
//! A leaf: every module may use it, it uses none. Errors travel as [`anyhow::Error`]; a [`Fault`] anywhere in the
//! chain says which exit status the program ends with and may carry a hint. The outermost fault decides the status.

use std::fmt;

/// Exit status of the program. The numbers are part of the command line's contract.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Status {
    /// A check said no: gate, smoke, verify, lint.
    CheckFailed = 1,
    /// The command line or the recipe is wrong.
    Usage = 2,
    /// Python, coremltools or the operating system lacks something.
    Environment = 3,
    /// A checkpoint, a disk or a remote is at fault.
    Input = 4,
    /// `--frozen` and something is not in the cache.
    Incomplete = 5,
    /// Ctrl-C.
    Interrupted = 130,
}

/// An error with an exit status and, where the user can mend it, a hint.
///
/// The message is lower case, without a full stop, names in backticks; it does not repeat what its source says.
#[derive(Debug)]
pub struct Fault {
    status: Status,
    message: String,
    hint: Option<String>,
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

impl Fault {
    /// A fault of the given status.
    pub fn new(status: Status, message: impl Into<String>) -> Self {
        Self { status, message: message.into(), hint: None, source: None }
    }

    /// The command line or the recipe is wrong: exit status 2.
    pub fn usage(message: impl Into<String>) -> Self {
        Self::new(Status::Usage, message)
    }

    /// Python, coremltools or the operating system lacks something: exit status 3.
    pub fn environment(message: impl Into<String>) -> Self {
        Self::new(Status::Environment, message)
    }

    /// A checkpoint, a disk or a remote is at fault: exit status 4.
    pub fn input(message: impl Into<String>) -> Self {
        Self::new(Status::Input, message)
    }

    /// Adds what to do: the exact command or key.
    #[must_use]
    pub fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Adds the error that caused this one; it is printed below as `caused by`.
    #[must_use]
    pub fn with_source(mut self, source: impl Into<anyhow::Error>) -> Self {
        self.source = Some(source.into().reallocate_into_boxed_dyn_error_without_backtrace());
        self
    }

    /// The exit status.
    pub fn status(&self) -> Status {
        self.status
    }

    /// What to do, if the user can do something.
    pub fn hint(&self) -> Option<&str> {
        self.hint.as_deref()
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Fault {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_deref().map(|e| e as _)
    }
}

/// Turns any error into a [`Fault`] with that error as its cause.
pub trait OrFault<T> {
    /// On failure: a fault made by `fault`, caused by the error at hand.
    ///
    /// # Errors
    /// Whatever `self` holds, wrapped.
    fn or_fault(self, fault: impl FnOnce() -> Fault) -> anyhow::Result<T>;
}

impl<T, E: Into<anyhow::Error>> OrFault<T> for Result<T, E> {
    fn or_fault(self, fault: impl FnOnce() -> Fault) -> anyhow::Result<T> {
        self.map_err(|error| fault().with_source(error).into())
    }
}

/// The exit status that an error ends the program with: that of the outermost [`Fault`]; without one, an
/// [`std::io::Error`] is an input fault, and anything else is reported as an input fault too.
pub fn status(error: &anyhow::Error) -> Status {
    faults(error).next().map_or(Status::Input, Fault::status)
}

/// Every hint in the chain, outermost first.
pub fn hints(error: &anyhow::Error) -> impl Iterator<Item = &str> {
    faults(error).filter_map(Fault::hint)
}

/// Every fault of the chain, outermost first.
fn faults(error: &anyhow::Error) -> impl Iterator<Item = &Fault> {
    let chain = error.chain().filter_map(|cause| cause.downcast_ref::<Fault>());
    // A fault that was attached as context is not among the chain's own types.
    let context = error.downcast_ref::<Fault>().filter(|fault| {
        error.chain().all(|cause| !cause.downcast_ref::<Fault>().is_some_and(|f| std::ptr::eq(f, *fault)))
    });
    context.into_iter().chain(chain)
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::Context;

    #[test]
    fn outermost_fault_decides_the_status_and_all_hints_are_kept() {
        let inner = anyhow::Error::from(Fault::input("tensor `a` is short").with_hint("fetch it again"));
        let middle = Err::<(), _>(inner).context("cannot read `x`");
        let outer = middle.or_fault(|| Fault::environment("no Python").with_hint("make setup")).unwrap_err();
        assert_eq!(status(&outer), Status::Environment);
        assert_eq!(hints(&outer).collect::<Vec<_>>(), ["make setup", "fetch it again"]);
        let texts: Vec<_> = outer.chain().map(ToString::to_string).collect();
        assert_eq!(texts, ["no Python", "cannot read `x`", "tensor `a` is short"]);
    }

    #[test]
    fn an_error_without_a_fault_is_an_input_fault() {
        assert_eq!(status(&anyhow::anyhow!("odd")), Status::Input);
    }
}
