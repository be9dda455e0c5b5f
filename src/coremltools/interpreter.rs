//! Starts CPython inside this process, as the environment's own `python` would start.

use super::environment::{Environment, SETUP};
use super::exception::attached;
use super::sources::{EMBED, MODULES};
use crate::error::{Fault, OrFault};
use anyhow::Result;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::ffi::{CStr, CString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

static STARTED: AtomicBool = AtomicBool::new(false);
static RUNNING: Mutex<Option<&'static Python>> = Mutex::new(None);

/// Whether this process has started an interpreter.
pub fn started() -> bool {
    STARTED.load(Ordering::Acquire)
}

/// The running interpreter with coremltools and the embedded package imported. Calls from several
/// threads run one after another.
#[derive(Debug)]
pub struct Python {
    _private: (),
}

impl Python {
    /// Starts the interpreter of `environment`, once per process: later calls give the same one, whatever their
    /// environment. Takes about half a second and 90 MB. Python's stdout becomes stderr; signal handlers stay as they
    /// are; `PYTHON*` variables and the user's site-packages are ignored.
    ///
    /// # Errors
    /// Environment faults: what [`Environment::tool_versions`] refuses, an interpreter that does not start, an import
    /// that fails.
    pub fn start(environment: &Environment) -> Result<&'static Self> {
        let mut running = RUNNING.lock().expect("no start panics while it holds the lock");
        if let Some(python) = *running {
            return Ok(python);
        }
        environment.tool_versions()?;
        if STARTED.swap(true, Ordering::AcqRel) {
            return Err(Fault::environment("Python failed to start earlier in this process").into());
        }
        initialise(environment.executable())?;
        attached("importing coremltools", |py| {
            let namespace = PyDict::new(py);
            let sources = PyDict::new(py);
            for module in MODULES {
                sources.set_item(module.name, (module.is_package, module.source))?;
            }
            namespace.set_item("SOURCES", sources)?;
            namespace.set_item("__name__", "embed")?;
            let text = CString::new(EMBED).expect("Python sources hold no NUL");
            py.run(&text, Some(&namespace), None)
        })
        .or_fault(|| {
            let executable = environment.executable().display();
            Fault::environment(format!("the packages of `{executable}` cannot be used")).with_hint(SETUP)
        })?;
        let python: &'static Self = Box::leak(Box::new(Self { _private: () }));
        *running = Some(python);
        Ok(python)
    }
}

/// The version of the libpython that this program is linked with, for instance `3.11.7`. Starts nothing.
pub(super) fn linked_version() -> &'static str {
    // SAFETY: may be called before initialisation; gives a static string.
    let text = unsafe { CStr::from_ptr(ffi::Py_GetVersion()) };
    text.to_str().ok().and_then(|text| text.split_whitespace().next()).unwrap_or("unknown")
}

fn initialise(executable: &Path) -> Result<()> {
    let path = CString::new(executable.as_os_str().as_bytes())
        .map_err(|_| Fault::environment(format!("`{}` holds a NUL", executable.display())))?;
    // SAFETY: no interpreter runs yet (`STARTED`); the configuration is initialised before use, its strings are
    // copied, and it is cleared once; the thread state is given up at the end, so that `attach` works on any thread.
    let failure = unsafe {
        let mut config = std::mem::MaybeUninit::<ffi::PyConfig>::uninit();
        ffi::PyConfig_InitPythonConfig(config.as_mut_ptr());
        let config = &mut *config.as_mut_ptr();
        config.parse_argv = 0;
        config.install_signal_handlers = 0;
        config.use_environment = 0;
        config.user_site_directory = 0;
        // Python finds pyvenv.cfg beside its executable, and all else from there.
        let (executable, program_name) = (&raw mut config.executable, &raw mut config.program_name);
        let mut status = ffi::PyConfig_SetBytesString(config, executable, path.as_ptr());
        if ffi::PyStatus_Exception(status) == 0 {
            status = ffi::PyConfig_SetBytesString(config, program_name, path.as_ptr());
        }
        if ffi::PyStatus_Exception(status) == 0 {
            status = ffi::Py_InitializeFromConfig(config);
        }
        ffi::PyConfig_Clear(config);
        if ffi::PyStatus_Exception(status) == 0 {
            ffi::PyEval_SaveThread();
            None
        } else if status.err_msg.is_null() {
            Some("Python gives no reason".to_owned())
        } else {
            Some(CStr::from_ptr(status.err_msg).to_string_lossy().into_owned())
        }
    };
    match failure {
        None => Ok(()),
        Some(reason) => {
            Err(Fault::environment(format!("cannot start Python as `{}`: {reason}", executable.display())).into())
        }
    }
}
