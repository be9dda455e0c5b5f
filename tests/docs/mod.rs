//! What README and CONTRIBUTING say can be typed: commands parse, targets exist, recipes are valid.

use anebake::cli::Cli;
use anebake::recipe::Recipe;
use clap::Parser;

const TEXTS: [(&str, &str); 2] =
    [("README", include_str!("../../README.md")), ("CONTRIBUTING", include_str!("../../CONTRIBUTING.md"))];

/// The fenced blocks of a language, each with the name of its text.
fn blocks(language: &str) -> Vec<(&'static str, &'static str)> {
    let opening = format!("```{language}\n");
    let in_text = |(name, text): (&'static str, &'static str)| {
        let blocks = text.split(&opening).skip(1).map(move |rest| (name, rest.split("```").next().unwrap_or(rest)));
        blocks.collect::<Vec<_>>()
    };
    TEXTS.into_iter().flat_map(in_text).collect()
}

/// The words of a command line; what stands in double quotes is one.
fn words(line: &'static str) -> Vec<&'static str> {
    let parts = line.split('"').enumerate();
    parts.flat_map(|(i, part)| if i % 2 == 1 { vec![part] } else { part.split_whitespace().collect() }).collect()
}

fn commands(program: &str) -> Vec<(&'static str, Vec<&'static str>)> {
    let lines = blocks("sh").into_iter().flat_map(|(name, block)| block.lines().map(move |line| (name, line)));
    let words = lines.map(|(name, line)| (name, words(line.split('#').next().unwrap_or(line))));
    words.filter(|(_, words): &(_, Vec<&str>)| words.first() == Some(&program)).collect()
}

#[test]
fn every_anebake_command_parses() {
    let commands = commands("anebake");
    assert!(commands.len() > 10, "only {} commands were found", commands.len());
    for (text, words) in commands {
        if let Err(error) = Cli::try_parse_from(&words) {
            panic!("{text} says `{}`: {error}", words.join(" "));
        }
    }
}

#[test]
fn every_make_command_has_a_target() {
    let makefile = include_str!("../../Makefile");
    let commands = commands("make");
    assert!(commands.len() > 3, "only {} commands were found", commands.len());
    for (text, words) in commands {
        let target = words[1];
        assert!(makefile.lines().any(|line| line.starts_with(&format!("{target}:"))), "{text} says `make {target}`");
    }
}

#[test]
fn every_recipe_is_valid() {
    let recipes = blocks("toml");
    assert!(!recipes.is_empty());
    let folder = tempfile::tempdir().unwrap();
    for (number, (text, recipe)) in recipes.into_iter().enumerate() {
        let path = folder.path().join(format!("{number}.toml"));
        std::fs::write(&path, recipe).unwrap();
        if let Err(error) = Recipe::load(path.to_str().unwrap(), &[]) {
            panic!("a recipe in {text}: {error:#}\n{recipe}");
        }
    }
}

#[test]
fn every_built_in_recipe_is_listed_with_its_status() {
    let readme = TEXTS[0].1;
    for recipe in anebake::recipe::list().unwrap() {
        let row = readme.lines().find(|line| line.starts_with(&format!("| `{}`", recipe.name)));
        let row = row.unwrap_or_else(|| panic!("README does not list `{}`", recipe.name));
        assert_eq!(row.ends_with("| frozen |"), recipe.frozen, "{row}");
    }
}
