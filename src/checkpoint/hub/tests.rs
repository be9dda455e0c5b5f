use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use super::*;
use crate::error::{Status, hints, status};

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";
const REPO: &str = "owner/model";

/// What the server does; shared with its thread.
#[derive(Default)]
struct Behaviour {
    files: BTreeMap<String, Vec<u8>>,
    /// Revision -> commit.
    revisions: BTreeMap<String, String>,
    /// Status of every answer below `/owner/model/resolve/`.
    files_status: Option<u16>,
    /// Without this token nothing is served.
    token: Option<String>,
    /// The next whole-file answer stops after so many bytes.
    break_after: Option<usize>,
    /// Etags that differ from the content's SHA-256.
    false_etag: Option<String>,
    /// `METHOD path range` of every request.
    log: Vec<String>,
}

/// A hub on the loopback interface: the two routes that hf-hub uses, one connection per request.
struct Server {
    endpoint: String,
    behaviour: Arc<Mutex<Behaviour>>,
}

impl Server {
    fn start(files: &[(&str, &[u8])]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let behaviour = Arc::new(Mutex::new(Behaviour {
            files: files.iter().map(|(name, bytes)| ((*name).to_owned(), bytes.to_vec())).collect(),
            revisions: BTreeMap::from([("main".to_owned(), COMMIT.to_owned()), (COMMIT.to_owned(), COMMIT.to_owned())]),
            ..Behaviour::default()
        }));
        let shared = Arc::clone(&behaviour);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                // A client that went away is no concern of the server.
                let _ = answer(stream, &shared);
            }
        });
        Self { endpoint, behaviour }
    }

    fn set(&self, change: impl FnOnce(&mut Behaviour)) {
        change(&mut self.behaviour.lock().unwrap());
    }

    fn take_log(&self) -> Vec<String> {
        std::mem::take(&mut self.behaviour.lock().unwrap().log)
    }
}

fn answer(mut stream: TcpStream, behaviour: &Mutex<Behaviour>) -> std::io::Result<()> {
    let mut lines = BufReader::new(stream.try_clone()?).lines();
    let request = lines.next().ok_or(std::io::ErrorKind::UnexpectedEof)??;
    let mut headers = BTreeMap::new();
    for line in lines {
        let line = line?;
        let Some((name, value)) = line.split_once(':') else { break };
        headers.insert(name.to_ascii_lowercase(), value.trim().to_owned());
    }
    let path = request.split(' ').nth(1).unwrap_or_default().to_owned();
    let mut state = behaviour.lock().unwrap();
    let range = headers.get("range").cloned().unwrap_or_default();
    state.log.push(format!("{path} {range}").trim().to_owned());

    let refuse = |stream: &mut TcpStream, code: u16| {
        write!(stream, "HTTP/1.1 {code} No\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
    };
    if let Some(token) = &state.token
        && headers.get("authorization") != Some(&format!("Bearer {token}"))
    {
        return refuse(&mut stream, 401);
    }
    if let Some(revision) = path.strip_prefix("/api/models/owner/model/revision/") {
        let Some(commit) = state.revisions.get(revision) else { return refuse(&mut stream, 404) };
        let siblings: Vec<_> = state.files.keys().map(|name| serde_json::json!({ "rfilename": name })).collect();
        let body = serde_json::json!({ "sha": commit, "siblings": siblings }).to_string();
        return write!(
            stream,
            "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
            body.len()
        );
    }
    let Some((revision, name)) = path.strip_prefix("/owner/model/resolve/").and_then(|rest| rest.split_once('/'))
    else {
        return refuse(&mut stream, 404);
    };
    if let Some(code) = state.files_status {
        return refuse(&mut stream, code);
    }
    let commit = state.revisions.get(revision).cloned();
    let (Some(commit), Some(bytes)) = (commit, state.files.get(name).cloned()) else {
        return refuse(&mut stream, 404);
    };
    let etag = state
        .false_etag
        .clone()
        .filter(|_| name == SINGLE)
        .unwrap_or_else(|| Sha256::digest(&bytes).iter().map(|byte| format!("{byte:02x}")).collect());
    let (first, last) = range.strip_prefix("bytes=").and_then(|range| range.split_once('-')).unwrap_or(("0", ""));
    let first: usize = first.parse().unwrap();
    let last = last.parse().unwrap_or(bytes.len().saturating_sub(1));
    if first >= bytes.len() {
        return refuse(&mut stream, 416);
    }
    let part = &bytes[first..=last];
    write!(
        stream,
        "HTTP/1.1 206 Partial Content\r\nx-repo-commit: {commit}\r\netag: \"{etag}\"\r\n\
         content-range: bytes {first}-{last}/{}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
        bytes.len(),
        part.len()
    )?;
    let sent = if name == SINGLE && part.len() > 1 { state.break_after.take() } else { None };
    stream.write_all(&part[..sent.unwrap_or(part.len()).min(part.len())])
}

fn hub(endpoint: &str, cache: &Path) -> Hub {
    Hub::new(endpoint.to_owned(), cache.to_owned(), None).unwrap()
}

fn fetch(hub: &Hub, revision: Option<&str>) -> Result<PathBuf> {
    hub.fetch(&REPO.parse().unwrap(), revision, &())
}

fn single() -> Server {
    Server::start(&[
        ("README.md", b"not needed"),
        ("config.json", b"{\"model_type\":\"qwen3\"}"),
        ("model.safetensors", b"0123456789"),
        ("pytorch_model.bin", b"not needed"),
    ])
}

/// Status and the whole chain of an error.
fn told(error: &anyhow::Error) -> (Status, String) {
    (status(error), format!("{error:#}"))
}

#[derive(Default)]
struct Heard(Mutex<Vec<String>>);

impl Progress for Heard {
    fn start(&self, file: &str, bytes: u64) {
        self.0.lock().unwrap().push(format!("start {file} {bytes}"));
    }
    fn advance(&self, bytes: u64) {
        let mut heard = self.0.lock().unwrap();
        if bytes > 0 {
            heard.push(format!("advance {bytes}"));
        }
    }
    fn finish(&self) {
        self.0.lock().unwrap().push("finish".to_owned());
    }
}

#[test]
fn only_the_needed_files_of_one_commit_are_fetched() {
    let server = single();
    let cache = tempfile::tempdir().unwrap();
    let heard = Heard::default();
    let folder = hub(&server.endpoint, cache.path()).fetch(&REPO.parse().unwrap(), None, &heard).unwrap();
    assert_eq!(folder, cache.path().join("models--owner--model/snapshots").join(COMMIT));
    let mut names: Vec<_> = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["config.json", "model.safetensors"]);
    assert_eq!(std::fs::read(folder.join("model.safetensors")).unwrap(), b"0123456789");
    assert_eq!(
        server.take_log(),
        [
            "/api/models/owner/model/revision/main".to_owned(),
            format!("/owner/model/resolve/{COMMIT}/config.json bytes=0-0"),
            format!("/owner/model/resolve/{COMMIT}/config.json bytes=0-"),
            format!("/owner/model/resolve/{COMMIT}/model.safetensors bytes=0-0"),
            format!("/owner/model/resolve/{COMMIT}/model.safetensors bytes=0-"),
        ]
    );
    assert_eq!(
        *heard.0.lock().unwrap(),
        ["start config.json 22", "advance 22", "finish", "start model.safetensors 10", "advance 10", "finish"]
    );
}

#[test]
fn a_cached_model_opens_without_a_connection_by_branch_and_by_commit() {
    let server = single();
    let cache = tempfile::tempdir().unwrap();
    let folder = fetch(&hub(&server.endpoint, cache.path()), None).unwrap();
    let offline = hub(&refusing(), cache.path());
    assert_eq!(fetch(&offline, None).unwrap(), folder);
    assert_eq!(fetch(&offline, Some("main")).unwrap(), folder);
    assert_eq!(fetch(&offline, Some(COMMIT)).unwrap(), folder);
}

fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap();
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn the_tokenizers_files_come_with_the_weights_where_the_repository_has_them() {
    let server = single();
    server.set(|state| {
        for name in ["tokenizer.json", "generation_config.json", "tokenizer.model", "vocab.json"] {
            state.files.insert(name.to_owned(), name.as_bytes().to_vec());
        }
    });
    let cache = tempfile::tempdir().unwrap();
    let folder = fetch(&hub(&server.endpoint, cache.path()), None).unwrap();
    let expected = ["config.json", "generation_config.json", "model.safetensors", "tokenizer.json"];
    assert_eq!(names(&folder), expected);
    assert_eq!(std::fs::read(folder.join("tokenizer.json")).unwrap(), b"tokenizer.json");
    // What the repository lacks is remembered as huggingface_hub does.
    let absent = cache.path().join("models--owner--model/.no_exist").join(COMMIT);
    assert_eq!(names(&absent), ["chat_template.jinja", "tokenizer_config.json"]);
    assert_eq!(fetch(&hub(&refusing(), cache.path()), None).unwrap(), folder);
}

#[test]
fn weights_cached_without_the_tokenizer_get_it_from_their_own_commit_once_the_hub_is_there() {
    let server = single();
    let cache = tempfile::tempdir().unwrap();
    let folder = fetch(&hub(&server.endpoint, cache.path()), None).unwrap();
    std::fs::remove_dir_all(cache.path().join("models--owner--model/.no_exist")).unwrap();
    server.set(|state| {
        state.files.insert("tokenizer.json".to_owned(), b"{}".to_vec());
        state.revisions.insert("main".to_owned(), "89abcdef0123456789abcdef0123456789abcdef".to_owned());
    });
    assert_eq!(fetch(&hub(&refusing(), cache.path()), None).unwrap(), folder);
    assert!(!folder.join("tokenizer.json").exists());

    server.take_log();
    assert_eq!(fetch(&hub(&server.endpoint, cache.path()), None).unwrap(), folder);
    assert_eq!(std::fs::read(folder.join("tokenizer.json")).unwrap(), b"{}");
    let log = server.take_log();
    assert!(!log.iter().any(|line| line.contains("safetensors") || line.contains("/main")), "{log:?}");
    assert_eq!(fetch(&hub(&refusing(), cache.path()), None).unwrap(), folder);
}

#[test]
fn a_sharded_repository_brings_its_index_and_each_shard_once() {
    let index = br#"{"metadata":{},"weight_map":{"a":"model-2.safetensors","b":"model-1.safetensors","c":"model-1.safetensors"}}"#;
    let server = Server::start(&[
        ("config.json", b"{}"),
        ("model.safetensors.index.json", index),
        ("model-1.safetensors", b"one"),
        ("model-2.safetensors", b"two"),
        ("model-3.safetensors", b"not in the index"),
    ]);
    let cache = tempfile::tempdir().unwrap();
    let hub = hub(&server.endpoint, cache.path());
    let folder = fetch(&hub, None).unwrap();
    let mut names: Vec<_> = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["config.json", "model-1.safetensors", "model-2.safetensors", "model.safetensors.index.json"]);

    std::fs::remove_file(folder.join("model-2.safetensors")).unwrap();
    server.take_log();
    assert_eq!(fetch(&hub, None).unwrap(), folder);
    let log = server.take_log();
    assert!(log.iter().skip(1).all(|line| line.contains("/model-2.safetensors")), "only the lost shard: {log:?}");
    assert_eq!(std::fs::read(folder.join("model-2.safetensors")).unwrap(), b"two");
}

#[test]
fn an_index_that_names_a_file_outside_the_repository_is_refused() {
    let index = br#"{"weight_map":{"a":"../../evil.safetensors"}}"#;
    let server = Server::start(&[("config.json", b"{}"), ("model.safetensors.index.json", index)]);
    let cache = tempfile::tempdir().unwrap();
    let error = fetch(&hub(&server.endpoint, cache.path()), None).unwrap_err();
    assert_eq!(
        told(&error),
        (Status::Input, "the index of `owner/model` names the file `../../evil.safetensors`".to_owned())
    );
}

#[test]
fn a_broken_download_is_continued_where_it_stopped() {
    let server = single();
    let cache = tempfile::tempdir().unwrap();
    let hub = hub(&server.endpoint, cache.path());
    server.set(|state| state.break_after = Some(4));
    let error = fetch(&hub, None).unwrap_err();
    assert_eq!(status(&error), Status::Input);
    assert_eq!(
        error.chain().take(2).map(ToString::to_string).collect::<Vec<_>>(),
        ["cannot download `model.safetensors` of `owner/model`", "the download broke off"]
    );
    assert_eq!(hints(&error).collect::<Vec<_>>(), ["run the same command again: it continues where it stopped"]);

    server.take_log();
    let folder = fetch(&hub, None).unwrap();
    assert_eq!(std::fs::read(folder.join("model.safetensors")).unwrap(), b"0123456789");
    let whole = format!("/owner/model/resolve/{COMMIT}/model.safetensors bytes=4-");
    assert!(server.take_log().contains(&whole), "the second download begins at byte 4");
}

#[test]
fn a_remnant_that_cannot_be_continued_is_downloaded_anew() {
    for remnant in [&b"0123456789"[..], b"longer than the file"] {
        let server = single();
        let cache = tempfile::tempdir().unwrap();
        let blobs = cache.path().join("models--owner--model/blobs");
        std::fs::create_dir_all(&blobs).unwrap();
        let digest: String = Sha256::digest(b"0123456789").iter().map(|byte| format!("{byte:02x}")).collect();
        std::fs::write(blobs.join(digest).with_extension("part"), remnant).unwrap();
        let folder = fetch(&hub(&server.endpoint, cache.path()), None).unwrap();
        assert_eq!(std::fs::read(folder.join("model.safetensors")).unwrap(), b"0123456789");
    }
}

#[test]
fn a_remnant_with_wrong_bytes_never_becomes_a_model() {
    let server = single();
    let cache = tempfile::tempdir().unwrap();
    let blobs = cache.path().join("models--owner--model/blobs");
    std::fs::create_dir_all(&blobs).unwrap();
    let digest: String = Sha256::digest(b"0123456789").iter().map(|byte| format!("{byte:02x}")).collect();
    std::fs::write(blobs.join(&digest).with_extension("part"), b"xyz").unwrap();
    let hub = hub(&server.endpoint, cache.path());
    let error = fetch(&hub, None).unwrap_err();
    let (status, text) = told(&error);
    assert_eq!(status, Status::Input);
    assert!(text.starts_with("`model.safetensors` of `owner/model` has SHA-256 "), "{text}");
    assert!(text.ends_with(&format!("the hub announced {digest}")), "{text}");
    assert_eq!(hints(&error).collect::<Vec<_>>(), ["it was removed; run the same command again"]);
    let folder = fetch(&hub, None).unwrap();
    assert_eq!(std::fs::read(folder.join("model.safetensors")).unwrap(), b"0123456789");
}

#[test]
fn content_other_than_announced_is_refused_each_time() {
    let server = single();
    server.set(|state| state.false_etag = Some("f".repeat(64)));
    let cache = tempfile::tempdir().unwrap();
    let hub = hub(&server.endpoint, cache.path());
    for _ in 0..2 {
        assert!(told(&fetch(&hub, None).unwrap_err()).1.contains("has SHA-256"));
    }
}

#[test]
fn a_moved_branch_never_mixes_two_commits() {
    let server = single();
    let cache = tempfile::tempdir().unwrap();
    let hub = hub(&server.endpoint, cache.path());
    server.set(|state| state.break_after = Some(4));
    fetch(&hub, None).unwrap_err();
    let later = "89abcdef0123456789abcdef0123456789abcdef";
    server.set(|state| {
        state.revisions = BTreeMap::from([("main".to_owned(), later.to_owned()), (later.to_owned(), later.to_owned())]);
        state.files.insert("config.json".to_owned(), b"{\"later\":1}".to_vec());
        state.files.insert("model.safetensors".to_owned(), b"abcdefghij".to_vec());
    });
    let folder = fetch(&hub, None).unwrap();
    assert_eq!(folder.file_name().unwrap(), later);
    assert_eq!(std::fs::read(folder.join("config.json")).unwrap(), b"{\"later\":1}");
    assert_eq!(std::fs::read(folder.join("model.safetensors")).unwrap(), b"abcdefghij");
}

#[test]
fn a_link_whose_blob_is_gone_is_fetched_again() {
    let server = single();
    let cache = tempfile::tempdir().unwrap();
    let hub = hub(&server.endpoint, cache.path());
    let folder = fetch(&hub, None).unwrap();
    std::fs::remove_file(folder.join("model.safetensors").canonicalize().unwrap()).unwrap();
    assert_eq!(fetch(&hub, None).unwrap(), folder);
    assert_eq!(std::fs::read(folder.join("model.safetensors")).unwrap(), b"0123456789");
}

#[test]
fn a_file_that_another_process_downloads_is_waited_for() {
    let server = single();
    let cache = tempfile::tempdir().unwrap();
    let blobs = cache.path().join("models--owner--model/blobs");
    std::fs::create_dir_all(&blobs).unwrap();
    let digest: String = Sha256::digest(b"0123456789").iter().map(|byte| format!("{byte:02x}")).collect();
    let lock = std::fs::File::create(blobs.join(digest).with_extension("lock")).unwrap();
    rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive).unwrap();
    std::thread::scope(|scope| {
        let fetching = scope.spawn(|| fetch(&hub(&server.endpoint, cache.path()), None));
        std::thread::sleep(std::time::Duration::from_secs(7));
        assert!(!fetching.is_finished());
        drop(lock);
        let folder = fetching.join().unwrap().unwrap();
        assert_eq!(std::fs::read(folder.join("model.safetensors")).unwrap(), b"0123456789");
    });
}

#[test]
fn a_cache_that_cannot_be_written_is_told_apart_from_a_broken_download() {
    let server = single();
    let folder = tempfile::tempdir().unwrap();
    let cache = folder.path().join("a file");
    std::fs::write(&cache, b"").unwrap();
    let error = fetch(&hub(&server.endpoint, &cache), None).unwrap_err();
    assert_eq!(error.chain().nth(1).unwrap().to_string(), format!("cannot write to the cache `{}`", cache.display()));
    let hint = "make room or set HF_HOME to a folder on another disk";
    assert_eq!(hints(&error).collect::<Vec<_>>(), [hint]);
    assert_eq!(status(&error), Status::Input);
}

#[test]
fn an_unknown_repository_or_revision_is_named() {
    let server = single();
    let cache = tempfile::tempdir().unwrap();
    let hub = hub(&server.endpoint, cache.path());
    let error = fetch(&hub, Some("v9")).unwrap_err();
    assert_eq!(
        told(&error),
        (Status::Input, "cannot look up `owner/model` at `v9`: the hub has no `owner/model` at `v9`".to_owned())
    );
    let error = hub.fetch(&"no/such".parse().unwrap(), None, &()).unwrap_err();
    assert_eq!(
        told(&error),
        (Status::Input, "cannot look up `no/such` at `main`: the hub has no `no/such` at `main`".to_owned())
    );
    let hint = format!("check the name and the revision at {}/no/such", server.endpoint);
    assert_eq!(hints(&error).collect::<Vec<_>>(), [hint]);
}

#[test]
fn a_listed_file_that_is_not_there_is_named() {
    let server = single();
    server.set(|state| state.files_status = Some(404));
    let cache = tempfile::tempdir().unwrap();
    let error = fetch(&hub(&server.endpoint, cache.path()), None).unwrap_err();
    let text = "cannot download `config.json` of `owner/model`: `owner/model` at `main` has no `config.json`";
    assert_eq!(told(&error), (Status::Input, text.to_owned()));
}

#[test]
fn a_repository_without_safetensors_is_refused_with_what_it_has() {
    let server = Server::start(&[("config.json", b"{}"), ("model-q8.gguf", b"GGUF")]);
    let cache = tempfile::tempdir().unwrap();
    let error = fetch(&hub(&server.endpoint, cache.path()), None).unwrap_err();
    assert_eq!(told(&error), (Status::Input, "`owner/model` at `main` has no safetensors".to_owned()));
    let hint = "it has GGUF: download `model-q8.gguf` and name the file with `--model PATH`";
    assert_eq!(hints(&error).collect::<Vec<_>>(), [hint]);
}

#[test]
fn a_private_or_gated_repository_asks_for_licence_and_token_and_a_token_opens_it() {
    let server = single();
    server.set(|state| state.token = Some("hf_secret".to_owned()));
    let cache = tempfile::tempdir().unwrap();
    let error = fetch(&hub(&server.endpoint, cache.path()), None).unwrap_err();
    let text = "cannot look up `owner/model` at `main`: the hub refuses `owner/model` (HTTP 401): it does not exist, \
                is private, or asks for a licence to be accepted";
    assert_eq!(told(&error), (Status::Input, text.to_owned()));
    let hint = format!("check the name; accept the licence at {}/owner/model and set HF_TOKEN", server.endpoint);
    assert_eq!(hints(&error).collect::<Vec<_>>(), [hint]);

    let variables = |name: &str| match name {
        "HF_ENDPOINT" => Some(format!("{}/", server.endpoint)),
        "HF_HOME" => Some(cache.path().display().to_string()),
        "HF_TOKEN" => Some("hf_secret\n".to_owned()),
        _ => None,
    };
    let folder = fetch(&Hub::from_variables(variables).unwrap(), None).unwrap();
    assert_eq!(folder, cache.path().join("hub/models--owner--model/snapshots").join(COMMIT));
}

#[test]
fn a_gated_file_is_refused_like_a_gated_repository() {
    let server = single();
    server.set(|state| state.files_status = Some(403));
    let cache = tempfile::tempdir().unwrap();
    let error = fetch(&hub(&server.endpoint, cache.path()), None).unwrap_err();
    assert_eq!(status(&error), Status::Input);
    assert!(format!("{error:#}").contains("(HTTP 403)"));
}

#[test]
fn the_environment_names_cache_home_and_token_file() {
    let home = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(home.path().join(".cache/huggingface")).unwrap();
    std::fs::write(home.path().join(".cache/huggingface/token"), "hf_file\n").unwrap();
    let server = single();
    server.set(|state| state.token = Some("hf_file".to_owned()));
    let elsewhere = home.path().join("elsewhere");
    let variables = |cache: Option<&Path>| {
        let cache = cache.map(|path| path.display().to_string());
        let (home, endpoint) = (home.path().display().to_string(), server.endpoint.clone());
        move |name: &str| match name {
            "HOME" => Some(home.clone()),
            "HF_ENDPOINT" => Some(endpoint.clone()),
            "HF_HUB_CACHE" => cache.clone(),
            _ => None,
        }
    };
    let folder = fetch(&Hub::from_variables(variables(None)).unwrap(), None).unwrap();
    assert!(folder.starts_with(home.path().join(".cache/huggingface/hub")));
    let folder = fetch(&Hub::from_variables(variables(Some(&elsewhere))).unwrap(), None).unwrap();
    assert!(folder.starts_with(&elsewhere));
}

/// An endpoint where nothing listens.
fn refusing() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    format!("http://{}", listener.local_addr().unwrap())
}

#[test]
fn an_unreachable_hub_points_to_the_sample_and_to_folders() {
    let cache = tempfile::tempdir().unwrap();
    let endpoint = refusing();
    let error = fetch(&hub(&endpoint, cache.path()), None).unwrap_err();
    let (status, text) = told(&error);
    assert_eq!(status, Status::Input);
    let begin = format!("cannot look up `owner/model` at `main`: the hub at {endpoint} cannot be reached: ");
    assert!(text.starts_with(&begin), "{text}");
    assert_eq!(hints(&error).collect::<Vec<_>>(), ["use `--model sample`, or a folder: `--model PATH`"]);
}

#[test]
fn a_server_that_is_no_hub_is_told_apart_from_one_that_cannot_be_reached() {
    let server = single();
    server.set(|state| _ = state.revisions.insert("main".to_owned(), "not a commit".to_owned()));
    let cache = tempfile::tempdir().unwrap();
    let error = fetch(&hub(&server.endpoint, cache.path()), None).unwrap_err();
    let text = format!("`{}` names the commit `not a commit`", server.endpoint);
    assert_eq!(told(&error), (Status::Input, text));
}
