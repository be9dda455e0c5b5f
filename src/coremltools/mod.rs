//! coremltools, embedded: the interpreter, the Python package that authors and converts blocks, and the oracle.
//!
//! The only module that knows pyo3. It owns finding a Python environment ([`Environment`], which starts nothing),
//! starting the interpreter ([`Python::start`]), and the calls into `python/anebake`. What to bake comes in as a JSON
//! request and tensors; packages go to the folder that the caller names.

mod array;
mod engine;
mod environment;
mod exception;
mod interpreter;
mod oracle;
mod sources;

pub use array::{Array, ArrayDtype, SourceArray};
pub use engine::{PACKAGE, PROBES, TemplateProbe, TemplateReply, TemplateScheme, TemplateTensor};
pub use environment::{Environment, ToolVersions};
pub use exception::{PythonError, traceback};
pub use interpreter::{Python, started};
pub use oracle::{Oracle, State};
pub use sources::sources_digest;
