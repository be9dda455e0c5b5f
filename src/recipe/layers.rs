//! From a name or a path to one merged document: parents first, then the recipe itself, then `--set`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::Result;
use toml::{Table, Value};

use super::check::{check, closest, join, with_suggestion};
use super::document::SCHEMA;
use super::values::{Granularity, WeightDtype};
use super::{Origin, builtin};
use crate::checkpoint::source::ModelSource;
use crate::error::{Fault, OrFault};

/// Keys that say how weights are quantized, and so have no meaning for `float16`.
const QUANTIZATION_KEYS: [&str; 4] = ["scheme", "granularity", "block_size", "rounding"];

/// One recipe text or all of `--set`, checked against the schema.
pub(super) struct Layer {
    origin: Origin,
    table: Table,
}

/// All layers in one table, and where each value comes from.
#[derive(Default)]
pub(super) struct Merged {
    /// Nested as a recipe is; `override` holds the entries of all layers, without `extends`.
    pub table: Table,
    /// By key path; an override's is `override[0]`.
    pub origins: BTreeMap<String, Origin>,
}

/// The layers that `name_or_path` stands for, the outermost parent first.
pub(super) fn load(name_or_path: &str) -> Result<Vec<Layer>> {
    let mut layers = Vec::new();
    let mut seen = Vec::new();
    let mut next = Some((name_or_path.to_owned(), PathBuf::new()));
    while let Some((reference, base)) = next.take() {
        let layer = if is_path(&reference) { read_file(&base.join(&reference))? } else { read_built_in(&reference)? };
        let identity = match &layer.origin {
            Origin::File(path) => path.canonicalize().unwrap_or_else(|_| path.clone()).display().to_string(),
            origin => origin.to_string(),
        };
        if seen.contains(&identity) {
            return Err(Fault::usage(format!("{}: `extends` leads back to the recipe itself", layer.origin))
                .with_hint("a recipe's parents must end in one without `extends`")
                .into());
        }
        seen.push(identity);
        let folder = match &layer.origin {
            Origin::File(path) => path.parent().unwrap_or(Path::new("")).to_owned(),
            _ => PathBuf::new(),
        };
        next = layer.table.get("extends").and_then(Value::as_str).map(|parent| (parent.to_owned(), folder));
        layers.push(layer);
    }
    layers.reverse();
    Ok(layers)
}

/// One layer from TOML text.
pub(super) fn parse(text: &str, origin: Origin) -> Result<Layer> {
    let mut table: Table = text.parse().map_err(|error: toml::de::Error| {
        let line = error.span().map_or(0, |span| text[..span.start.min(text.len())].matches('\n').count() + 1);
        Fault::usage(format!("{origin}: not TOML at line {line}: {}", error.message().replace('\n', ", ")))
    })?;
    if !table.contains_key("schema") {
        return Err(Fault::usage(format!("{origin}: key `schema` is missing")).with_hint("add `schema = 1`").into());
    }
    if let Some(version) = table.get("schema").and_then(Value::as_integer).filter(|version| *version > 1) {
        return Err(Fault::usage(format!("{origin}: `schema` is {version}, this anebake reads 1"))
            .with_hint("a newer anebake reads it")
            .into());
    }
    check(&Value::Table(table.clone()), &SCHEMA, "", &origin)?;
    check_strings(&mut table, &origin)?;
    Ok(Layer { origin, table })
}

/// `--set key=value`, all in one layer. A value is TOML; what is not TOML is taken as a string.
pub(super) fn parse_sets(sets: &[String]) -> Result<Option<Layer>> {
    if sets.is_empty() {
        return Ok(None);
    }
    let origin = Origin::Set;
    let mut table = Table::new();
    for set in sets {
        let (key, text) = set.split_once('=').ok_or_else(|| {
            Fault::usage(format!("{origin}: `{set}` has no `=`")).with_hint("write `--set weights.dtype=int8`")
        })?;
        let (key, text) = (key.trim(), text.trim());
        if key == "schema" || key == "extends" {
            return Err(Fault::usage(format!("{origin}: `{key}` cannot be set"))
                .with_hint(format!("write a recipe file with `{key}`, and name it with `--recipe PATH`"))
                .into());
        }
        let value = format!("value = {text}")
            .parse::<Table>()
            .ok()
            .filter(|parsed| parsed.len() == 1)
            .and_then(|mut parsed| parsed.remove("value"))
            .unwrap_or_else(|| Value::String(text.to_owned()));
        insert(&mut table, key, value)
            .ok_or_else(|| Fault::usage(format!("{origin}: `{key}` is below or above a key that is set already")))?;
    }
    check(&Value::Table(table.clone()), &SCHEMA, "", &origin)?;
    check_strings(&mut table, &origin)?;
    Ok(Some(Layer { origin, table }))
}

impl Layer {
    /// The name of a recipe that does not say its own: its file's.
    pub(super) fn name(&self) -> String {
        match &self.origin {
            Origin::File(path) => {
                let stem = path.file_stem().unwrap_or_default().to_string_lossy();
                let stem = stem.replace(|c: char| !c.is_ascii_alphanumeric() && !matches!(c, '.' | '_' | '-'), "-");
                if is_name(&stem) { stem } else { format!("recipe{stem}") }
            }
            Origin::BuiltIn(name) => name.clone(),
            Origin::Set | Origin::Default => String::new(),
        }
    }
}

impl Merged {
    /// Puts a layer over those before it.
    pub(super) fn add(&mut self, layer: Layer, topmost: bool) -> Result<()> {
        let Layer { origin, table } = layer;
        for (key, value) in table {
            match (key.as_str(), value) {
                ("extends", _) => {}
                // These describe one recipe and are not handed down.
                ("name" | "description", _) if !topmost && origin != Origin::Set => {}
                ("override", Value::Array(entries)) => {
                    let all = self.table.entry("override").or_insert_with(|| Value::Array(Vec::new()));
                    let all = all.as_array_mut().expect("`override` is only ever written here, as an array");
                    for entry in entries {
                        self.origins.insert(format!("override[{}]", all.len()), origin.clone());
                        all.push(entry);
                    }
                }
                ("weights", Value::Table(keys)) => {
                    let below = self.table.remove("weights").and_then(|below| below.try_into().ok());
                    let (weights, dropped) = weights_over(&below.unwrap_or_default(), &keys, "weights", &origin)?;
                    for key in dropped {
                        self.origins.remove(&join("weights", &key));
                    }
                    for key in keys.keys() {
                        self.origins.insert(join("weights", key), origin.clone());
                    }
                    self.table.insert("weights".to_owned(), Value::Table(weights));
                }
                (_, value) => write_over(&mut self.table, &key, value, &key, &origin, &mut self.origins),
            }
        }
        Ok(())
    }
}

fn write_over(
    below: &mut Table,
    key: &str,
    value: Value,
    path: &str,
    origin: &Origin,
    origins: &mut BTreeMap<String, Origin>,
) {
    let Value::Table(children) = value else {
        below.insert(key.to_owned(), value);
        origins.insert(path.to_owned(), origin.clone());
        return;
    };
    let below = below.entry(key).or_insert_with(|| Value::Table(Table::new()));
    let below = below.as_table_mut().expect("the schema gives a key one type in every layer");
    for (child, value) in children {
        write_over(below, &child, value, &join(path, &child), origin, origins);
    }
}

/// Weight keys written over those below; also names the keys of `below` that lost their meaning and are dropped:
/// all of a quantization once `dtype` is `float16`, `block_size` once `granularity` is not `per_block`.
///
/// # Errors
/// A key that `over` itself writes has no meaning there, or `per_block` lacks `block_size`.
pub(super) fn weights_over(below: &Table, over: &Table, path: &str, origin: &Origin) -> Result<(Table, Vec<String>)> {
    let mut result = below.clone();
    result.extend(over.clone());
    let word = |table: &Table, key| table.get(key).and_then(Value::as_str).map(str::to_owned);
    let dtype = word(&result, "dtype").unwrap_or_else(|| WeightDtype::Float16.to_string());
    let granularity = word(&result, "granularity").unwrap_or_else(|| Granularity::PerChannel.to_string());
    let mut dropped = Vec::new();
    let mut drop_key = |result: &mut Table, key: &str| {
        if result.remove(key).is_some() {
            dropped.push(key.to_owned());
        }
    };
    if dtype == WeightDtype::Float16.as_str() {
        for key in QUANTIZATION_KEYS {
            if over.contains_key(key) {
                let at = join(path, key);
                return Err(Fault::usage(format!("{origin}: `{at}` has no meaning with `{path}.dtype` `{dtype}`"))
                    .with_hint(format!("remove `{at}`, or set `{path}.dtype` to `int8` or `int4`"))
                    .into());
            }
            drop_key(&mut result, key);
        }
    } else if granularity != Granularity::PerBlock.as_str() {
        if over.contains_key("block_size") {
            return Err(Fault::usage(format!(
                "{origin}: `{path}.block_size` has no meaning with `{path}.granularity` `{granularity}`"
            ))
            .with_hint(format!("remove `{path}.block_size`, or set `{path}.granularity` to `per_block`"))
            .into());
        }
        drop_key(&mut result, "block_size");
    } else if !result.contains_key("block_size") {
        return Err(Fault::usage(format!("{origin}: `{path}.granularity` is `per_block` without a block size"))
            .with_hint(format!("add `{path}.block_size`, for instance 32"))
            .into());
    }
    Ok((result, dropped))
}

fn is_path(reference: &str) -> bool {
    reference.contains('/') || reference.ends_with(".toml")
}

/// The TOML text that `name_or_path` stands for.
pub(super) fn text(name_or_path: &str) -> Result<String> {
    if is_path(name_or_path) {
        return file_text(Path::new(name_or_path));
    }
    Ok(find_built_in(name_or_path)?.text.to_owned())
}

fn file_text(path: &Path) -> Result<String> {
    std::fs::read_to_string(path).or_fault(|| Fault::usage(format!("cannot read recipe `{}`", path.display())))
}

fn read_file(path: &Path) -> Result<Layer> {
    parse(&file_text(path)?, Origin::File(path.to_owned()))
}

fn read_built_in(name: &str) -> Result<Layer> {
    parse(find_built_in(name)?.text, Origin::BuiltIn(name.to_owned()))
}

fn find_built_in(name: &str) -> Result<&'static builtin::BuiltIn> {
    builtin::find(name).ok_or_else(|| {
        let names = || builtin::ALL.iter().map(|recipe| recipe.name);
        let list = names().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
        let fault = Fault::usage(format!("no built-in recipe is named `{name}`; there are {list}"));
        let near = closest(name, names());
        let fault = if near.is_some() {
            with_suggestion(fault, near, "")
        } else {
            fault.with_hint(format!("a recipe file is named by its path: `./{name}.toml`"))
        };
        fault.into()
    })
}

fn is_name(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphanumeric())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-'))
}

/// What the schema cannot say: names, the form of `model.source`, and its path, which starts at the recipe file.
fn check_strings(table: &mut Table, origin: &Origin) -> Result<()> {
    if let Some(name) = table.get("name").and_then(Value::as_str).filter(|name| !is_name(name)) {
        return Err(Fault::usage(format!("{origin}: `name` is `{name}`, not letters, digits, `.`, `_` and `-`"))
            .with_hint("begin it with a letter or a digit")
            .into());
    }
    let Some(source) = table.get_mut("model").and_then(|model| model.get_mut("source")) else { return Ok(()) };
    let text = source.as_str().unwrap_or_default();
    let parsed: ModelSource =
        text.parse().or_fault(|| Fault::usage(format!("{origin}: `model.source` is `{text}`")))?;
    if let (Origin::File(file), ModelSource::Folder(path) | ModelSource::Gguf(path)) = (origin, parsed) {
        let folder = file.parent().unwrap_or(Path::new(""));
        *source = Value::String(folder.join(path).display().to_string());
    }
    Ok(())
}

/// Sets a dotted key; `None` where a table stands in for a value or the reverse.
fn insert(table: &mut Table, key: &str, value: Value) -> Option<()> {
    match key.split_once('.') {
        None => match (table.get(key), &value) {
            (Some(Value::Table(_)), _) => None,
            _ => {
                table.insert(key.to_owned(), value);
                Some(())
            }
        },
        Some((first, rest)) => {
            let below = table.entry(first).or_insert_with(|| Value::Table(Table::new()));
            insert(below.as_table_mut()?, rest, value)
        }
    }
}
