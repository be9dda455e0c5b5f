//! Models on the Hugging Face hub: the files that a bake needs, in the cache that every Hugging Face tool shares.
//!
//! A revision is resolved to one commit first and all files are taken from that commit, so a push in the middle of a
//! download cannot mix two versions. A revision whose files are all in the cache is not looked up again: name a commit
//! (`@revision`) to be sure of the version, or remove the cached one to have it renewed.

use std::cell::Cell;
use std::fmt;
use std::io::Read;
use std::path::{Component, Path, PathBuf};
use std::rc::Rc;
use std::str::FromStr;

use anyhow::{Context, Result};
use hf_hub::api::RepoInfo;
use hf_hub::api::sync::{Api, ApiBuilder, ApiError, ApiRepo};
use hf_hub::{Cache, Repo, RepoType};
use sha2::{Digest, Sha256};

use crate::error::{Fault, OrFault};

const CONFIG: &str = "config.json";
const INDEX: &str = "model.safetensors.index.json";
const SINGLE: &str = "model.safetensors";
/// What the tokenizer is read from, where a repository has it.
const OPTIONAL: [&str; 4] =
    ["tokenizer.json", "tokenizer_config.json", "generation_config.json", "chat_template.jinja"];
/// How often to wait, five seconds each, for another process that downloads the same file.
const LOCK_WAITS: usize = 720;
const ELSEWHERE: &str = "use `--model sample`, or a folder: `--model PATH`";

/// Hears how a download goes. Files come one after another.
pub trait Progress {
    /// A file of `bytes` bytes begins.
    fn start(&self, file: &str, bytes: u64);
    /// `bytes` more are here; those of an earlier, interrupted download count.
    fn advance(&self, bytes: u64);
    /// The file has ended, well or not.
    fn finish(&self);
}

/// Hears nothing.
impl Progress for () {
    fn start(&self, _: &str, _: u64) {}
    fn advance(&self, _: u64) {}
    fn finish(&self) {}
}

/// `owner/name` of a repository.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RepoId(String);

impl FromStr for RepoId {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let sound = |part: &str| {
            part.len() <= 96
                && part.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_')
                && part.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-'))
                && !part.contains("..")
                && !part.contains("--")
        };
        match text.split_once('/') {
            Some((owner, name)) if sound(owner) && sound(name) => Ok(Self(text.to_owned())),
            _ => Err(Fault::usage(format!("`{text}` is no repository of the hub"))
                .with_hint("write `hf:owner/name`, for instance `hf:Qwen/Qwen3-0.6B`")
                .into()),
        }
    }
}

impl fmt::Display for RepoId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The hub: its address, the cache on this disk, and the token.
pub struct Hub {
    api: Api,
    cache: Cache,
    endpoint: String,
}

impl Hub {
    /// The hub as the environment says: `HF_ENDPOINT`; `HF_HUB_CACHE`, else `HF_HOME/hub`; `HF_TOKEN`, else the token
    /// file that `hf auth login` writes.
    ///
    /// # Errors
    /// An environment fault where no connection can be set up at all.
    pub fn from_env() -> Result<Self> {
        Self::from_variables(|name| std::env::var(name).ok())
    }

    fn from_variables(variable: impl Fn(&str) -> Option<String>) -> Result<Self> {
        let variable =
            |name: &str| variable(name).map(|value| value.trim().to_owned()).filter(|value| !value.is_empty());
        let home = match variable("HF_HOME") {
            Some(home) => PathBuf::from(home),
            None => PathBuf::from(variable("HOME").ok_or_else(|| {
                Fault::environment("neither `HOME` nor `HF_HOME` is set").with_hint("set HF_HOME to a folder")
            })?)
            .join(".cache/huggingface"),
        };
        let token = variable("HF_TOKEN").or_else(|| Cache::new(home.join("hub")).token());
        let cache = variable("HF_HUB_CACHE").map_or_else(|| home.join("hub"), PathBuf::from);
        let endpoint = variable("HF_ENDPOINT").unwrap_or_else(|| "https://huggingface.co".to_owned());
        Self::new(endpoint.trim_end_matches('/').to_owned(), cache, token)
    }

    fn new(endpoint: String, cache: PathBuf, token: Option<String>) -> Result<Self> {
        // The cache links files to blobs by relative paths, which hf-hub works out from absolute ones only.
        let cache = Cache::new(std::path::absolute(&cache).unwrap_or(cache));
        let api = ApiBuilder::from_cache(cache.clone())
            .with_endpoint(endpoint.clone())
            .with_token(token)
            .with_progress(false)
            .with_user_agent("anebake", env!("CARGO_PKG_VERSION"))
            .build()
            .or_fault(|| Fault::environment("cannot set up a connection to the hub"))?;
        Ok(Self { api, cache, endpoint })
    }

    /// The folder with `config.json`, `model.safetensors` or the index and its shards, and the tokenizer's files where
    /// the repository has them, of one commit. What the cache lacks is downloaded, continuing where an interrupted
    /// download stopped; with all of it cached, no connection is made. A branch stays at the commit that was cached.
    /// Where the tokenizer's files alone may be missing and the hub cannot be asked, the folder is given without them.
    ///
    /// # Errors
    /// An input fault: the hub is unreachable, refuses, has no such repository, revision or file, or sent something
    /// other than it announced.
    pub fn fetch(&self, repo: &RepoId, revision: Option<&str>, progress: &dyn Progress) -> Result<PathBuf> {
        let revision = revision.unwrap_or("main");
        let download = Download { hub: self, repo, revision, progress };
        match download.cached()? {
            None => download.run(&download.info(revision)?),
            Some(folder) => match download.commit_to_complete(&folder) {
                None => Ok(folder),
                // Where the hub is out of reach, what could be baked before still can be.
                Some(commit) => download.info(&commit).map_or(Ok(folder), |info| download.run(&info)),
            },
        }
    }
}

/// One repository at one revision.
struct Download<'a> {
    hub: &'a Hub,
    repo: &'a RepoId,
    revision: &'a str,
    progress: &'a dyn Progress,
}

impl Download<'_> {
    fn at(&self, revision: &str) -> Repo {
        Repo::with_revision(self.repo.to_string(), RepoType::Model, revision.to_owned())
    }

    /// The snapshot folder, if the revision is known and everything is there.
    fn cached(&self) -> Result<Option<PathBuf>> {
        let cached = self.hub.cache.repo(self.at(self.revision));
        let mut folder = cached.get(CONFIG).and_then(|path| path.parent().map(Path::to_owned));
        if folder.is_none() && is_commit(self.revision) {
            folder = Some(cached.pointer_path(self.revision)).filter(|folder| folder.join(CONFIG).is_file());
        }
        let Some(folder) = folder else { return Ok(None) };
        let index = folder.join(INDEX);
        let complete = if index.is_file() {
            self.shards(&index)?.iter().all(|shard| folder.join(shard).is_file())
        } else {
            folder.join(SINGLE).is_file()
        };
        Ok(complete.then_some(folder))
    }

    /// The commit of a snapshot folder of which it is not known whether the repository has more of the tokenizer.
    fn commit_to_complete(&self, folder: &Path) -> Option<String> {
        let commit = folder.file_name()?.to_str()?;
        let known = |name: &str| folder.join(name).is_file() || self.absent(commit, name).is_file();
        (!OPTIONAL.into_iter().all(known)).then(|| commit.to_owned())
    }

    /// The file by which huggingface_hub remembers that a commit has no file of this name.
    fn absent(&self, commit: &str, name: &str) -> PathBuf {
        let mut snapshot = self.hub.cache.repo(self.at(commit)).pointer_path(commit);
        snapshot.pop();
        snapshot.with_file_name(".no_exist").join(commit).join(name)
    }

    fn info(&self, revision: &str) -> Result<RepoInfo> {
        let answer = self.hub.api.repo(self.at(revision)).info();
        answer
            .map_err(|error| self.explain(error, None))
            .with_context(|| format!("cannot look up `{}` at `{revision}`", self.repo))
    }

    fn run(&self, info: &RepoInfo) -> Result<PathBuf> {
        if !is_commit(&info.sha) {
            return Err(Fault::input(format!("`{}` names the commit `{}`", self.hub.endpoint, info.sha))
                .with_hint("check HF_ENDPOINT: this is not how the hub answers")
                .into());
        }
        let weights = self.weights_file(info)?;
        let pinned = self.hub.api.repo(self.at(&info.sha));
        let config = self.file(&pinned, &info.sha, CONFIG)?;
        let first = self.file(&pinned, &info.sha, weights)?;
        if weights == INDEX {
            for shard in self.shards(&first)? {
                self.file(&pinned, &info.sha, &shard)?;
            }
        }
        for name in OPTIONAL {
            if info.siblings.iter().any(|file| file.rfilename == name) {
                self.file(&pinned, &info.sha, name)?;
            } else {
                let absent = self.absent(&info.sha, name);
                let note = || -> std::io::Result<()> {
                    std::fs::create_dir_all(absent.parent().unwrap_or(&absent))?;
                    std::fs::write(&absent, b"")
                };
                note().or_fault(|| Fault::input(format!("cannot write `{}`", absent.display())))?;
            }
        }
        self.hub
            .cache
            .repo(self.at(self.revision))
            .create_ref(&info.sha)
            .or_fault(|| Fault::input(format!("cannot write to the cache `{}`", self.hub.cache.path().display())))?;
        Ok(config.parent().expect("a cached file lies in a snapshot folder").to_owned())
    }

    fn weights_file(&self, info: &RepoInfo) -> Result<&'static str> {
        let has = |name: &str| info.siblings.iter().any(|file| file.rfilename == name);
        let weights = [INDEX, SINGLE].into_iter().find(|name| has(name));
        if let Some(weights) = weights.filter(|_| has(CONFIG)) {
            return Ok(weights);
        }
        let gguf = info.siblings.iter().find(|file| file.rfilename.ends_with(".gguf"));
        let lacks = if has(CONFIG) { "safetensors" } else { "`config.json`" };
        let fault = Fault::input(format!("`{}` at `{}` has no {lacks}", self.repo, self.revision));
        Err(match gguf {
            Some(file) => fault
                .with_hint(format!("it has GGUF: download `{}` and name the file with `--model PATH`", file.rfilename)),
            None => fault.with_hint("choose a repository with `config.json` and `model.safetensors` or its shards"),
        }
        .into())
    }

    /// Names of the shards, sorted, each once.
    fn shards(&self, index: &Path) -> Result<Vec<String>> {
        #[derive(serde::Deserialize)]
        struct Index {
            weight_map: std::collections::BTreeMap<String, String>,
        }
        let damaged = || {
            Fault::input(format!("`{}` is no safetensors index", index.display()))
                .with_hint("remove it to have it downloaded again")
        };
        let text = std::fs::read(index).or_fault(damaged)?;
        let index: Index = serde_json::from_slice(&text).or_fault(damaged)?;
        let shards: std::collections::BTreeSet<String> = index.weight_map.into_values().collect();
        for shard in &shards {
            let mut parts = Path::new(shard).components();
            if !matches!((parts.next(), parts.next()), (Some(Component::Normal(_)), None)) {
                return Err(Fault::input(format!("the index of `{}` names the file `{shard}`", self.repo)).into());
            }
        }
        Ok(shards.into_iter().collect())
    }

    fn file(&self, repo: &ApiRepo, commit: &str, name: &str) -> Result<PathBuf> {
        let cached = self.hub.cache.repo(self.at(commit));
        let pointer = cached.pointer_path(commit).join(name);
        let mut restarted = false;
        let mut waits = 0;
        loop {
            if let Some(path) = cached.get(name) {
                return Ok(path);
            }
            // A link whose blob is gone: hf-hub would try to make it a second time, and fail.
            if pointer.is_symlink() && !pointer.exists() {
                std::fs::remove_file(&pointer)
                    .or_fault(|| Fault::input(format!("cannot remove `{}`", pointer.display())))?;
            }
            let size = Rc::new(Cell::new(0));
            let meter = Meter { progress: self.progress, size: Rc::clone(&size), running: false };
            match repo.download_with_progress(name, meter) {
                Ok(path) => {
                    self.verify(&path, name, size.get())?;
                    return Ok(path);
                }
                // Another process is at it; the cache has the file once it is done.
                Err(ApiError::LockAcquisition(_)) if waits < LOCK_WAITS => waits += 1,
                // What an earlier download left cannot be continued; hf-hub would stumble over it for ever.
                Err(error) if !restarted && cannot_resume(&error) => {
                    restarted = true;
                    self.discard_part(repo, name)?;
                }
                Err(error) => {
                    return Err(self.explain(error, Some(name)))
                        .with_context(|| format!("cannot download `{name}` of `{}`", self.repo));
                }
            }
        }
    }

    fn discard_part(&self, repo: &ApiRepo, name: &str) -> Result<()> {
        let metadata = self.hub.api.metadata(&repo.url(name)).map_err(|error| self.explain(error, Some(name)))?;
        let part =
            self.hub.cache.repo(self.at(metadata.commit_hash())).blob_path(metadata.etag()).with_extension("part");
        std::fs::remove_file(&part).or_fault(|| Fault::input(format!("cannot remove `{}`", part.display())))
    }

    /// Compares a file just downloaded with its announced size, and with its SHA-256 where its blob is named by it.
    fn verify(&self, path: &Path, name: &str, size: u64) -> Result<()> {
        let blob = path.canonicalize().or_fault(|| Fault::input(format!("cannot read `{}`", path.display())))?;
        let read = || Fault::input(format!("cannot read `{}`", blob.display()));
        let length = blob.metadata().or_fault(read)?.len();
        let announced = blob.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let fault = if length != size {
            format!("`{name}` of `{}` has {length} bytes, the hub announced {size}", self.repo)
        } else if announced.len() == 64 && announced.bytes().all(|b| b.is_ascii_hexdigit()) {
            let digest = sha256(&blob).or_fault(read)?;
            if digest == announced.to_ascii_lowercase() {
                return Ok(());
            }
            format!("`{name}` of `{}` has SHA-256 {digest}, the hub announced {announced}", self.repo)
        } else {
            return Ok(());
        };
        for path in [path, &blob] {
            std::fs::remove_file(path).or_fault(|| Fault::input(format!("cannot remove `{}`", path.display())))?;
        }
        Err(Fault::input(fault).with_hint("it was removed; run the same command again").into())
    }

    fn explain(&self, error: ApiError, file: Option<&str>) -> anyhow::Error {
        let (repo, endpoint) = (self.repo, &self.hub.endpoint);
        let code = match &error {
            ApiError::RequestError(request) => match **request {
                ureq::Error::StatusCode(code) => Some(code),
                _ => None,
            },
            _ => None,
        };
        let fault = match (code, file) {
            (Some(404), None) => Fault::input(format!("the hub has no `{repo}` at `{}`", self.revision))
                .with_hint(format!("check the name and the revision at {endpoint}/{repo}")),
            (Some(404), Some(file)) => Fault::input(format!("`{repo}` at `{}` has no `{file}`", self.revision))
                .with_hint(format!("see its files at {endpoint}/{repo}/tree/{}", self.revision)),
            (Some(code @ (401 | 403)), _) => Fault::input(format!(
                "the hub refuses `{repo}` (HTTP {code}): it does not exist, is private, or asks for a licence to be accepted"
            ))
            .with_hint(format!("check the name; accept the licence at {endpoint}/{repo} and set HF_TOKEN")),
            (Some(code), _) => Fault::input(format!("the hub at {endpoint} answers HTTP {code}"))
                .with_hint(format!("try again later; or {ELSEWHERE}")),
            (None, _) => match error {
                ApiError::RequestError(request) => {
                    return Fault::input(format!("the hub at {endpoint} cannot be reached"))
                        .with_hint(ELSEWHERE)
                        .with_source(*request)
                        .into();
                }
                ApiError::IoError(error) if is_disk(&error) => {
                    return Fault::input(format!("cannot write to the cache `{}`", self.hub.cache.path().display()))
                        .with_hint("make room or set HF_HOME to a folder on another disk")
                        .with_source(error)
                        .into();
                }
                ApiError::LockAcquisition(lock) => {
                    return Fault::input(format!("another process holds `{}`", lock.display()))
                        .with_hint("end it, or set HF_HOME to a folder on a disk that can lock files")
                        .into();
                }
                ApiError::IoError(error) => {
                    return Fault::input("the download broke off")
                        .with_hint("run the same command again: it continues where it stopped")
                        .with_source(error)
                        .into();
                }
                error => {
                    return Fault::input(format!("the answer of {endpoint} is not the hub's"))
                        .with_hint(format!("check HF_ENDPOINT and any proxy; or {ELSEWHERE}"))
                        .with_source(error)
                        .into();
                }
            },
        };
        fault.into()
    }
}

fn cannot_resume(error: &ApiError) -> bool {
    match error {
        ApiError::InvalidResume => true,
        ApiError::RequestError(request) => matches!(**request, ureq::Error::StatusCode(416)),
        _ => false,
    }
}

fn is_disk(error: &std::io::Error) -> bool {
    use std::io::ErrorKind;
    matches!(
        error.kind(),
        ErrorKind::PermissionDenied
            | ErrorKind::StorageFull
            | ErrorKind::QuotaExceeded
            | ErrorKind::ReadOnlyFilesystem
            | ErrorKind::NotADirectory
            | ErrorKind::AlreadyExists
            | ErrorKind::NotFound
    )
}

fn is_commit(revision: &str) -> bool {
    revision.len() == 40 && revision.bytes().all(|b| b.is_ascii_hexdigit())
}

fn sha256(path: &Path) -> std::io::Result<String> {
    let mut file = std::fs::File::open(path)?;
    let mut hasher = Sha256::new();
    let mut buffer = vec![0; 1 << 20];
    loop {
        match file.read(&mut buffer)? {
            0 => break,
            read => hasher.update(&buffer[..read]),
        }
    }
    Ok(hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Hands hf-hub's progress on. hf-hub announces a file twice, and on failure does not say that it ended.
struct Meter<'a> {
    progress: &'a dyn Progress,
    size: Rc<Cell<u64>>,
    running: bool,
}

impl hf_hub::api::Progress for Meter<'_> {
    fn init(&mut self, size: usize, filename: &str) {
        if !self.running {
            self.running = true;
            self.size.set(size as u64);
            self.progress.start(filename, size as u64);
        }
    }

    fn update(&mut self, size: usize) {
        self.progress.advance(size as u64);
    }

    fn finish(&mut self) {}
}

impl Drop for Meter<'_> {
    fn drop(&mut self) {
        if self.running {
            self.progress.finish();
        }
    }
}

#[cfg(test)]
mod tests;
