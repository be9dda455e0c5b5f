//! Python exceptions as errors.

use crate::error::Fault;
use pyo3::prelude::*;
use std::fmt;
use std::sync::{Mutex, PoisonError};

/// A Python exception: its type and message; the traceback is kept apart for those who ask.
#[derive(Debug)]
pub struct PythonError {
    kind: String,
    message: String,
    traceback: Option<String>,
}

impl PythonError {
    pub(super) fn new(py: pyo3::Python<'_>, error: &PyErr) -> Self {
        let kind = error.get_type(py).name().map_or_else(|_| "Exception".to_owned(), |name| name.to_string());
        let message = error.value(py).str().map_or_else(|_| String::new(), |text| text.to_string());
        let parts = (error.get_type(py), error.value(py), error.traceback(py));
        // Python's own formatter finds the source lines of embedded modules.
        let lines = py.import("traceback").and_then(|module| module.call_method1("format_exception", parts));
        let traceback = lines.and_then(|lines| lines.extract::<Vec<String>>()).ok().map(|lines| lines.concat());
        Self { kind, message, traceback }
    }

    /// Name of the exception's class, for instance `ValueError`.
    pub fn kind(&self) -> &str {
        &self.kind
    }

    /// Python's own traceback, several lines, innermost call last.
    pub fn traceback(&self) -> Option<&str> {
        self.traceback.as_deref()
    }
}

impl fmt::Display for PythonError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.message.is_empty() { write!(f, "{}", self.kind) } else { write!(f, "{}: {}", self.kind, self.message) }
    }
}

impl std::error::Error for PythonError {}

/// The traceback of the Python exception in the chain of `error`, if there is one.
pub fn traceback(error: &anyhow::Error) -> Option<&str> {
    error.chain().find_map(|cause| cause.downcast_ref::<PythonError>()).and_then(PythonError::traceback)
}

/// coremltools keeps what it is authoring in globals, and Python changes threads in the middle of a call.
static CALLS: Mutex<()> = Mutex::new(());

/// Runs `call`, one at a time, with the interpreter attached. An exception becomes an environment fault that says `doing`; a request
/// that the Python side refuses becomes a usage fault with its words.
pub(super) fn attached<T>(doing: &str, call: impl FnOnce(pyo3::Python<'_>) -> PyResult<T>) -> anyhow::Result<T> {
    // Taken before the interpreter's lock, which a call gives up now and then.
    let _alone = CALLS.lock().unwrap_or_else(PoisonError::into_inner);
    pyo3::Python::attach(|py| {
        call(py).map_err(|error| {
            let error = PythonError::new(py, &error);
            if error.kind == "Refused" {
                return Fault::usage(error.message).into();
            }
            Fault::environment(format!("Python failed while {doing}")).with_source(error).into()
        })
    })
}
