//! The layers of `src/`: the table in `src/lib.rs` is the law.

use std::path::Path;

use regex::Regex;

/// Each source file below `src/`: its module, its path, and its text without comments.
fn sources() -> Vec<(String, String, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let comment = Regex::new(r"(?m)^\s*//.*$").unwrap();
    crate::support::files(&root)
        .into_iter()
        .filter(|(path, _)| path.extension().is_some_and(|extension| extension == "rs"))
        .map(|(path, bytes)| {
            let module = path.iter().next().unwrap().to_str().unwrap().trim_end_matches(".rs").to_owned();
            let text = comment.replace_all(std::str::from_utf8(&bytes).unwrap(), "").into_owned();
            (module, path.display().to_string(), text)
        })
        .collect()
}

/// The modules in the order of the table.
fn layers() -> Vec<&'static str> {
    let row = Regex::new(r"(?m)^//! \| \[`(\w+)`\] \|").unwrap();
    row.captures_iter(include_str!("../../src/lib.rs")).map(|found| found.extract::<1>().1[0]).collect()
}

/// The modules that a text names as `crate::module`, alone or in braces.
fn named(text: &str) -> Vec<String> {
    let one = Regex::new(r"\b(?:crate|anebake)::(\w+)").unwrap();
    let group = Regex::new(r"(?s)\b(?:crate|anebake)::\{(.*?)\};").unwrap();
    let member = Regex::new(r"(?:^|,)\s*(\w+)").unwrap();
    let nested = Regex::new(r"(?s)\{[^{}]*\}").unwrap();
    let mut found: Vec<String> = one.captures_iter(text).map(|name| name[1].to_owned()).collect();
    for list in group.captures_iter(text) {
        let flat = nested.replace_all(&list[1], "");
        found.extend(member.captures_iter(&flat).map(|name| name[1].to_owned()));
    }
    found
}

#[test]
fn the_table_lists_every_module() {
    let mut listed = layers();
    listed.sort_unstable();
    let declared = Regex::new(r"(?m)^pub mod (\w+);").unwrap();
    let declared: Vec<&str> =
        declared.captures_iter(include_str!("../../src/lib.rs")).map(|found| found.extract::<1>().1[0]).collect();
    assert_eq!(listed, declared);
}

#[test]
fn modules_depend_on_those_below_them_only_and_error_on_none() {
    let layers = layers();
    let rank = |module: &str| layers.iter().position(|layer| *layer == module);
    let mut upward = Vec::new();
    let mut arrows = 0;
    for (module, path, text) in sources() {
        let Some(from) = rank(&module) else {
            assert!(["main", "lib"].contains(&&*module), "{path}");
            continue;
        };
        for to in named(&text).into_iter().filter(|to| *to != module) {
            arrows += 1;
            match rank(&to) {
                Some(to) if to > from => {}
                _ => upward.push(format!("{path}: {to}")),
            }
        }
    }
    assert!(upward.is_empty(), "{upward:#?}");
    assert!(arrows > 50, "the sources were read");
}

#[test]
fn a_path_in_braces_counts_as_one_outside_them() {
    assert_eq!(
        named("use crate::{ui, bake::{plan, stamp}, error};\ncrate::cache::open()"),
        ["cache", "ui", "bake", "error"]
    );
}

#[test]
fn only_coremltools_meets_python_and_only_ui_prints() {
    let python = Regex::new(r"\b(pyo3|numpy)::").unwrap();
    let printing = Regex::new(r"\be?print(ln)?!|\bdbg!|io::std(out|err)\(").unwrap();
    let without_tests = |text: &str| text.split("#[cfg(test)]\nmod tests {").next().unwrap().to_owned();
    let users = |pattern: &Regex| {
        let mut modules: Vec<String> = sources()
            .into_iter()
            .filter(|(_, _, text)| pattern.is_match(&without_tests(text)))
            .map(|(module, ..)| module)
            .collect();
        modules.dedup();
        modules
    };
    assert_eq!(users(&python), ["coremltools"]);
    assert_eq!(users(&printing), ["ui"]);
}
