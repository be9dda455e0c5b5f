//! A resolved recipe as TOML text, with or without the origin of each value.

use std::fmt::Write;

use serde_json::{Map, Value};

use super::Recipe;
use super::check::join;

/// The resolved recipe as TOML; with `origins`, each value is followed by a comment that says where it comes from.
pub(super) fn toml_text(recipe: &Recipe, origins: bool) -> String {
    let mut text = String::new();
    let resolved = recipe.resolved();
    table(&mut text, resolved.as_object().expect("a recipe resolves to an object"), "", recipe, origins);
    text
}

fn table(text: &mut String, table: &Map<String, Value>, path: &str, recipe: &Recipe, origins: bool) {
    let comment = |path: &str| match recipe.origins().get(path) {
        Some(origin) if origins => format!("  # {}", origin.comment()),
        _ => String::new(),
    };
    for (key, value) in table.iter().filter(|(_, value)| !is_table(value)) {
        writeln!(text, "{key} = {}{}", scalar(value), comment(&join(path, key))).expect("a string grows");
    }
    for (key, value) in table {
        let path = join(path, key);
        match value {
            Value::Object(below) if !below.is_empty() => {
                write!(text, "\n[{path}]\n").expect("a string grows");
                self::table(text, below, &path, recipe, origins);
            }
            Value::Array(entries) if is_table(value) => {
                for (index, entry) in entries.iter().enumerate() {
                    let at = format!("{path}[{index}]");
                    write!(text, "\n[[{path}]]{}\n", comment(&at)).expect("a string grows");
                    self::table(text, entry.as_object().expect("entries are tables"), &at, recipe, origins);
                }
            }
            _ => {}
        }
    }
}

/// Whether a value is written below a heading of its own: a table, or an array of tables.
fn is_table(value: &Value) -> bool {
    match value {
        Value::Array(items) => items.first().is_none_or(Value::is_object),
        other => other.is_object(),
    }
}

fn scalar(value: &Value) -> String {
    match value {
        Value::String(text) => toml::Value::String(text.clone()).to_string(),
        Value::Array(items) => format!("[{}]", items.iter().map(scalar).collect::<Vec<_>>().join(", ")),
        other => other.to_string(),
    }
}
