//! One layer against the schema: unknown keys, wrong types, words and ranges, each named by its key path.

use anyhow::Result;
use serde_json::Value as Json;
use toml::Value;

use super::Origin;
use crate::error::Fault;

/// Checks `value` and all below it against `schema`; `path` is the key path so far, empty at the root.
///
/// # Errors
/// The first key or value that does not fit, as a usage fault that names `origin` and the key path.
pub(super) fn check(value: &Value, schema: &Json, path: &str, origin: &Origin) -> Result<()> {
    match (value, schema["type"].as_str().expect("the schema of each key names one type")) {
        (Value::Table(table), "object") => {
            let keys = schema["properties"].as_object().expect("every table of the schema lists its keys");
            table.iter().try_for_each(|(key, value)| {
                let path = join(path, key);
                match keys.get(key) {
                    Some(schema) => check(value, schema, &path, origin),
                    None => Err(unknown_key(origin, &path, key, keys.keys())),
                }
            })
        }
        (Value::Array(items), "array") => items
            .iter()
            .enumerate()
            .try_for_each(|(index, item)| check(item, &schema["items"], &format!("{path}[{index}]"), origin)),
        (Value::String(text), "string") => check_word(text, schema, path, origin),
        (Value::Integer(number), "integer") => in_range(*number as f64, value, schema, path, origin),
        (Value::Integer(number), "number") => in_range(*number as f64, value, schema, path, origin),
        (Value::Float(number), "number") => in_range(*number, value, schema, path, origin),
        (Value::Boolean(_), "boolean") => Ok(()),
        (_, expected) => {
            let expected = match expected {
                "object" => "a table",
                "array" => "an array",
                "integer" => "an integer",
                "number" => "a number",
                "boolean" => "true or false",
                _ => "a string",
            };
            Err(Fault::usage(format!("{origin}: `{path}` is {}, not {expected}", described(value))).into())
        }
    }
}

fn check_word(text: &str, schema: &Json, path: &str, origin: &Origin) -> Result<()> {
    let Some(words) = schema["enum"].as_array() else { return Ok(()) };
    let words: Vec<&str> = words.iter().filter_map(Json::as_str).collect();
    if words.contains(&text) {
        return Ok(());
    }
    let fault = Fault::usage(format!("{origin}: `{path}` is `{text}`, not {}", one_of(&words)));
    Err(with_suggestion(fault, closest(text, words.iter().copied()), "").into())
}

fn in_range(number: f64, value: &Value, schema: &Json, path: &str, origin: &Origin) -> Result<()> {
    let low = schema["minimum"].as_f64().unwrap_or(f64::NEG_INFINITY);
    let high = schema["maximum"].as_f64().unwrap_or(f64::INFINITY);
    if (low..=high).contains(&number) {
        return Ok(());
    }
    let allowed = if low == high { format!("{low}") } else { format!("in {low}..={high}") };
    Err(Fault::usage(format!("{origin}: `{path}` is {value}, not {allowed}")).into())
}

fn unknown_key<'a>(
    origin: &Origin,
    path: &str,
    key: &str,
    known: impl Iterator<Item = &'a String> + Clone,
) -> anyhow::Error {
    let parent = &path[..path.len() - key.len()];
    let fault = Fault::usage(format!("{origin}: unknown key `{path}`"));
    match closest(key, known.clone().map(String::as_str)) {
        Some(near) => with_suggestion(fault, Some(near), parent).into(),
        None => {
            let known: Vec<&str> = known.map(String::as_str).collect();
            fault.with_hint(format!("the keys here are {}", quoted(&known))).into()
        }
    }
}

/// Adds `did you mean` to a fault where there is something near.
pub(super) fn with_suggestion(fault: Fault, near: Option<&str>, prefix: &str) -> Fault {
    match near {
        Some(near) => fault.with_hint(format!("did you mean `{prefix}{near}`?")),
        None => fault,
    }
}

/// The candidate that `word` is probably a misspelling of, the first among equals.
pub(super) fn closest<'a>(word: &str, candidates: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    candidates
        .map(|candidate| (strsim::jaro_winkler(&word.to_lowercase(), &candidate.to_lowercase()), candidate))
        .filter(|(similarity, _)| *similarity >= 0.8)
        .reduce(|best, next| if next.0 > best.0 { next } else { best })
        .map(|(_, candidate)| candidate)
}

/// Key path of `key` below `path`.
pub(super) fn join(path: &str, key: &str) -> String {
    if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") }
}

fn one_of(words: &[&str]) -> String {
    if words.len() == 1 { quoted(words) } else { format!("one of {}", quoted(words)) }
}

fn quoted(words: &[&str]) -> String {
    words.iter().map(|word| format!("`{word}`")).collect::<Vec<_>>().join(", ")
}

fn described(value: &Value) -> String {
    match value {
        Value::String(text) => format!("the string `{text}`"),
        Value::Integer(number) => format!("the integer {number}"),
        Value::Float(number) => format!("the number {number}"),
        Value::Boolean(flag) => format!("{flag}"),
        Value::Datetime(date) => format!("the date {date}"),
        Value::Array(_) => "an array".to_owned(),
        Value::Table(_) => "a table".to_owned(),
    }
}
