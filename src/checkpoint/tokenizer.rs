//! The tokenizer that a checkpoint carries: files of a Hugging Face folder, or a GGUF file's own vocabulary.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde_json::{Map, Value};

use super::Checkpoint;
use super::gguf_header::{TokenizerValue, TokenizerValues, tokenizer_value};
use crate::arch::GgufValue;
use crate::error::{Fault, OrFault};
use crate::tokenizer::TokenizerFiles;
use crate::tokenizer::gguf::{Vocabulary, files};

const TOKENIZER: &str = "tokenizer.json";
const CONFIG: &str = "tokenizer_config.json";
const TEMPLATE: &str = "chat_template.jinja";
const GENERATION: &str = "generation_config.json";
const MODEL: &str = "config.json";

/// Where the tokenizer lies.
#[derive(Debug)]
pub(super) enum TokenizerSource {
    /// In files beside the weights.
    Folder,
    /// In the metadata.
    Gguf(TokenizerValues),
}

impl Checkpoint {
    /// The tokenizer; none where the checkpoint has none that is read (`tokenizer.json`, or a vocabulary in the GGUF
    /// file). The same checkpoint gives the same bytes. The files of a folder are given as they are: that they make a
    /// tokenizer is told by [`crate::tokenizer::Tokenizer::from_bytes`].
    ///
    /// # Errors
    /// An input fault that names the file and the key: what is there cannot be used.
    pub fn tokenizer(&self) -> Result<Option<TokenizerFiles>> {
        match &self.tokenizer {
            TokenizerSource::Folder => folder(&self.path),
            TokenizerSource::Gguf(values) => gguf(self.files[0].bytes(), values)
                .with_context(|| format!("cannot use the tokenizer in `{}`", self.path.display())),
        }
    }

    /// Everything that [`Self::tokenizer`] depends on beside this program: the files that it reads, of those that are
    /// there, and which of their bytes.
    ///
    /// # Errors
    /// An input fault: a file cannot be looked at.
    pub fn tokenizer_sources(&self) -> Result<Vec<(PathBuf, Range<u64>)>> {
        match &self.tokenizer {
            TokenizerSource::Folder => {
                let paths = [TOKENIZER, CONFIG, TEMPLATE, GENERATION, MODEL].map(|name| self.path.join(name));
                let there = paths.into_iter().filter_map(|path| match path.metadata() {
                    Ok(metadata) => Some(Ok((path, 0..metadata.len()))),
                    Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
                    Err(error) => {
                        let fault = || Fault::input(format!("cannot look at `{}`", path.display()));
                        Some(Err(error).or_fault(fault))
                    }
                });
                there.collect()
            }
            // Keys stand before their values, so the front of the file holds both.
            TokenizerSource::Gguf(values) => {
                let end = values.values().map(|range| range.end as u64).max().unwrap_or_default();
                Ok(vec![(self.path.clone(), 0..end)])
            }
        }
    }
}

/// The bytes of a file, if there is one.
fn read(path: &Path) -> Result<Option<Vec<u8>>> {
    match std::fs::read(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        bytes => bytes.or_fault(|| Fault::input(format!("cannot read `{}`", path.display()))).map(Some),
    }
}

fn folder(folder: &Path) -> Result<Option<TokenizerFiles>> {
    let Some(tokenizer) = read(&folder.join(TOKENIZER))? else { return Ok(None) };
    let parsed = |name: &str, bytes: Option<&[u8]>| -> Result<Map<String, Value>> {
        let path = folder.join(name);
        let json = bytes.map(serde_json::from_slice).transpose();
        Ok(json.or_fault(|| Fault::input(format!("`{}` is no JSON object", path.display())))?.unwrap_or_default())
    };
    let config_bytes = read(&folder.join(CONFIG))?;
    let config = parsed(CONFIG, config_bytes.as_deref())?;
    let generation = parsed(GENERATION, read(&folder.join(GENERATION))?.as_deref())?;
    let model = parsed(MODEL, read(&folder.join(MODEL))?.as_deref())?;
    let ids = |key: &str| -> Result<Option<Vec<u32>>> {
        for (name, file) in [(GENERATION, &generation), (MODEL, &model)] {
            if let Some(value) = file.get(key).filter(|value| !value.is_null()) {
                let path = folder.join(name);
                let ids = token_ids(value)
                    .ok_or_else(|| Fault::input(format!("`{key}` in `{}` is `{value}`, no token", path.display())))?;
                return Ok(Some(ids));
            }
        }
        Ok(None)
    };
    let named = |key: &str| -> Result<Option<u32>> {
        let token = match config.get(key) {
            Some(Value::Object(token)) => token.get("content").and_then(Value::as_str),
            Some(Value::String(token)) => Some(&**token),
            _ => None,
        };
        token.map(|token| added_token(&tokenizer, token)).transpose().map(Option::flatten)
    };
    let bos = match ids("bos_token_id")? {
        Some(ids) => ids.first().copied(),
        None => named("bos_token")?,
    };
    let mut eos = ids("eos_token_id")?.unwrap_or_default();
    // A tuned model's turns may end with a token that only its tokenizer names.
    if let Some(id) = named("eos_token")?.filter(|id| !eos.contains(id)) {
        eos.push(id);
    }
    let chat_template = match read(&folder.join(TEMPLATE))? {
        Some(bytes) => Some(
            String::from_utf8(bytes)
                .or_fault(|| Fault::input(format!("`{}` is not UTF-8", folder.join(TEMPLATE).display())))?,
        ),
        None => template(config.get("chat_template")),
    };
    Ok(Some(TokenizerFiles { tokenizer, config: config_bytes, bos, eos, chat_template }))
}

/// One token or several.
fn token_ids(value: &Value) -> Option<Vec<u32>> {
    let id = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok());
    match value {
        Value::Array(values) => values.iter().map(id).collect(),
        value => Some(vec![id(value)?]),
    }
}

/// The number of an added token in a `tokenizer.json`.
fn added_token(tokenizer: &[u8], content: &str) -> Result<Option<u32>> {
    #[derive(serde::Deserialize)]
    struct File {
        #[serde(default)]
        added_tokens: Vec<AddedToken>,
    }
    #[derive(serde::Deserialize)]
    struct AddedToken {
        id: u32,
        content: String,
    }
    let file: File =
        serde_json::from_slice(tokenizer).or_fault(|| Fault::input(format!("`{TOKENIZER}` is malformed")))?;
    Ok(file.added_tokens.into_iter().find(|token| token.content == content).map(|token| token.id))
}

/// The template, or the one called `default` of several.
fn template(value: Option<&Value>) -> Option<String> {
    match value? {
        Value::String(template) => Some(template.clone()),
        Value::Array(templates) => templates
            .iter()
            .find(|template| template["name"] == "default")
            .and_then(|template| template["template"].as_str())
            .map(str::to_owned),
        _ => None,
    }
}

fn gguf(bytes: &[u8], ranges: &TokenizerValues) -> Result<Option<TokenizerFiles>> {
    vocabulary(bytes, ranges)?.map(|vocabulary| files(&vocabulary)).transpose()
}

fn vocabulary<'a>(bytes: &'a [u8], ranges: &'a TokenizerValues) -> Result<Option<Vocabulary<'a>>> {
    let mut values = BTreeMap::new();
    for (key, range) in ranges {
        if let Some(short) = key.strip_prefix("tokenizer.") {
            let value = tokenizer_value(&bytes[range.clone()]).with_context(|| format!("metadata `{key}`"))?;
            values.insert(short, value);
        }
    }
    let mut values = Values(values);
    let Some(model) = values.text("ggml.model")?.filter(|model| !matches!(*model, "none" | "no_vocab")) else {
        return Ok(None);
    };
    Ok(Some(Vocabulary {
        model,
        pre: values.text("ggml.pre")?,
        tokens: values.texts("ggml.tokens")?.ok_or_else(|| Fault::input("`tokenizer.ggml.tokens` is missing"))?,
        types: match values.0.remove("ggml.token_type") {
            None => None,
            Some(TokenizerValue::Integers(types)) => Some(types),
            Some(_) => bail!(wrong("ggml.token_type", "integers")),
        },
        merges: values.texts("ggml.merges")?,
        scores: match values.0.remove("ggml.scores") {
            None => None,
            Some(TokenizerValue::Floats(scores)) => Some(scores),
            Some(_) => bail!(wrong("ggml.scores", "32-bit floats")),
        },
        bos: values.integer("ggml.bos_token_id")?,
        eos: values.integer("ggml.eos_token_id")?,
        eot: values.integer("ggml.eot_token_id")?,
        eom: values.integer("ggml.eom_token_id")?,
        unknown: values.integer("ggml.unknown_token_id")?,
        padding: values.integer("ggml.padding_token_id")?,
        add_bos: values.bool("ggml.add_bos_token")?,
        add_eos: values.bool("ggml.add_eos_token")?,
        add_space_prefix: values.bool("ggml.add_space_prefix")?,
        chat_template: values.text("chat_template")?,
    }))
}

/// Values by what follows `tokenizer.` in their keys.
struct Values<'a>(BTreeMap<&'a str, TokenizerValue<'a>>);

impl<'a> Values<'a> {
    fn text(&mut self, key: &str) -> Result<Option<&'a str>> {
        match self.0.remove(key) {
            None => Ok(None),
            Some(TokenizerValue::Text(text)) => Ok(Some(text)),
            Some(_) => bail!(wrong(key, "a string")),
        }
    }

    fn texts(&mut self, key: &str) -> Result<Option<Vec<&'a str>>> {
        match self.0.remove(key) {
            None => Ok(None),
            Some(TokenizerValue::Texts(texts)) => Ok(Some(texts)),
            Some(_) => bail!(wrong(key, "strings")),
        }
    }

    fn integer(&mut self, key: &str) -> Result<Option<i128>> {
        match self.0.remove(key) {
            None => Ok(None),
            Some(TokenizerValue::Scalar(GgufValue::Integer(integer))) => Ok(Some(integer)),
            Some(_) => bail!(wrong(key, "an integer")),
        }
    }

    fn bool(&mut self, key: &str) -> Result<Option<bool>> {
        match self.0.remove(key) {
            None => Ok(None),
            Some(TokenizerValue::Scalar(GgufValue::Bool(bool))) => Ok(Some(bool)),
            Some(_) => bail!(wrong(key, "a boolean")),
        }
    }
}

fn wrong(key: &str, wanted: &str) -> Fault {
    Fault::input(format!("`tokenizer.{key}` is not {wanted}"))
}

#[cfg(test)]
mod tests {
    use super::super::gguf_header;
    use super::*;
    use crate::tokenizer::Tokenizer;

    /// The sample model of the installed package.
    fn sample() -> Vec<u8> {
        std::fs::read(sample_path()).unwrap()
    }

    fn sample_path() -> PathBuf {
        let libraries = Path::new(env!("CARGO_MANIFEST_DIR")).join(".venv/lib");
        let found = std::fs::read_dir(libraries).unwrap().map(|entry| entry.unwrap().path().join("site-packages"));
        found.map(|folder| crate::checkpoint::sample::locate(&folder)).find_map(Result::ok).unwrap()
    }

    #[derive(serde::Deserialize)]
    struct Case {
        pre: String,
        text: String,
        tokens: Vec<u32>,
    }

    #[test]
    fn tokens_are_those_of_llama_cpp() {
        let bytes = sample();
        let ranges = gguf_header::read(&bytes).unwrap().tokenizer;
        let cases: Vec<Case> =
            serde_json::from_slice(include_bytes!("../../tests/golden/tokenizer/cases.json")).unwrap();
        let mut known: BTreeMap<String, Tokenizer> = BTreeMap::new();
        let mut different = Vec::new();
        for case in &cases {
            let tokenizer = known.entry(case.pre.clone()).or_insert_with(|| {
                let mut vocabulary = vocabulary(&bytes, &ranges).unwrap().unwrap();
                vocabulary.pre = Some(&case.pre);
                Tokenizer::from_bytes(&files(&vocabulary).unwrap().tokenizer).unwrap()
            });
            let tokens = tokenizer.encode(&case.text, true).unwrap();
            if tokens != case.tokens {
                let spelled: Vec<_> = tokens.iter().map(|token| tokenizer.spelling(*token)).collect();
                different.push(format!("{} {:?}: {tokens:?} {spelled:?}, not {:?}", case.pre, case.text, case.tokens));
            }
        }
        assert!(different.is_empty(), "{different:#?}");
        assert!(cases.len() > 100);
    }

    /// A folder as far as its tokenizer goes.
    fn folder_with(files: &[(&str, &str)]) -> Result<Option<TokenizerFiles>> {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in files {
            std::fs::write(folder.path().join(name), text).unwrap();
        }
        super::folder(folder.path())
    }

    #[test]
    fn a_folder_gives_its_files_as_they_are_and_the_tokens_that_its_configs_name() {
        assert_eq!(folder_with(&[("config.json", "{}")]).unwrap(), None);
        let tokenizer = r#"{"added_tokens": [{"id": 7, "content": "<end>", "special": true}], "model": {}}"#;
        let config = r#"{"eos_token": {"content": "<end>"}, "bos_token": "<none>", "chat_template": "{{ 1 }}"}"#;
        let files = [("tokenizer.json", tokenizer), ("tokenizer_config.json", config)];
        let found = folder_with(&files).unwrap().unwrap();
        assert_eq!(found.tokenizer, tokenizer.as_bytes());
        assert_eq!(found.config.as_deref(), Some(config.as_bytes()));
        assert_eq!((found.bos, &found.eos[..], found.chat_template.as_deref()), (None, &[7][..], Some("{{ 1 }}")));

        let all = [
            &files[..],
            &[
                ("config.json", r#"{"bos_token_id": 1, "eos_token_id": 2}"#),
                ("generation_config.json", r#"{"bos_token_id": null, "eos_token_id": [3, 7]}"#),
                ("chat_template.jinja", "{{ 2 }}"),
            ],
        ];
        let found = folder_with(&all.concat()).unwrap().unwrap();
        assert_eq!(
            (found.bos, &found.eos[..], found.chat_template.as_deref()),
            (Some(1), &[3, 7][..], Some("{{ 2 }}"))
        );
        let several = r#"{"chat_template": [{"name": "tool", "template": "a"}, {"name": "default", "template": "b"}]}"#;
        let found = folder_with(&[files[0], ("tokenizer_config.json", several)]).unwrap().unwrap();
        assert_eq!(found.chat_template.as_deref(), Some("b"));
    }

    #[test]
    fn files_of_a_folder_that_cannot_be_used_are_named() {
        for (name, text, expected) in [
            ("tokenizer_config.json", "[]", "tokenizer_config.json` is no JSON object"),
            ("generation_config.json", "{", "generation_config.json` is no JSON object"),
            ("config.json", r#"{"eos_token_id": "x"}"#, "config.json` is `\"x\"`, no token"),
            ("config.json", r#"{"eos_token_id": [1, -2]}"#, "config.json` is `[1,-2]`, no token"),
        ] {
            let error = folder_with(&[("tokenizer.json", "{}"), (name, text)]).unwrap_err();
            assert!(error.to_string().ends_with(expected), "{error}");
        }
    }

    #[test]
    fn a_gguf_vocabulary_is_made_anew_with_the_same_bytes_and_its_source_holds_every_value() {
        let bytes = sample();
        let file = tempfile::Builder::new().suffix(".gguf").tempfile().unwrap();
        std::fs::write(file.path(), &bytes).unwrap();
        let open = || Checkpoint::open(file.path()).unwrap();
        let files = open().tokenizer().unwrap().unwrap();
        assert_eq!((files.bos, &files.eos[..]), (Some(1), &[2, 0][..]));
        assert!(files.chat_template.as_deref().unwrap().starts_with("{% for message in messages %}"));
        assert_eq!(files, open().tokenizer().unwrap().unwrap());

        let sources = open().tokenizer_sources().unwrap();
        let [(path, source)] = &sources[..] else { panic!("{sources:?}") };
        assert_eq!((path.as_path(), source.start), (file.path(), 0));
        let values = gguf_header::read(&bytes).unwrap().tokenizer;
        assert!(values.len() > 5 && values.values().all(|range| range.end as u64 <= source.end));
        assert!(source.end < bytes.len() as u64 / 10, "weights are no part of it");
    }

    #[test]
    fn sources_of_a_folder_are_the_files_that_are_there() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::copy(sample_path(), folder.path().join("model.gguf")).unwrap();
        let mut checkpoint = Checkpoint::open(&folder.path().join("model.gguf")).unwrap();
        checkpoint.path = folder.path().to_owned();
        checkpoint.tokenizer = TokenizerSource::Folder;
        std::fs::write(folder.path().join("config.json"), "{}").unwrap();
        std::fs::write(folder.path().join("tokenizer.json"), "tokens").unwrap();
        let found = checkpoint.tokenizer_sources().unwrap();
        assert_eq!(
            found,
            [("tokenizer.json", 6), ("config.json", 2)].map(|(name, size)| (folder.path().join(name), 0..size))
        );
    }
}
