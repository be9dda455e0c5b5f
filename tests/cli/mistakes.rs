//! Near misses on the command line: what was meant is done, or said.

use serde_json::Value;

use crate::support::{Bench, TinyModel, stderr, stdout};

#[test]
fn explain_names_the_block_that_was_asked_for() {
    let bench = Bench::new(&TinyModel::new("llama", 1));
    let output = bench.run(&["explain", "9", "--model", "model", "--set", "package.context=128"]);
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(
        stderr(&output),
        "anebake: error: `9` is no block of a model with 2 blocks\n  hint: blocks are 0 to 1; beside them \
         there are `head` and `embedding`\n"
    );
}

#[test]
fn options_that_would_mean_nothing_are_refused() {
    let bench = Bench::new(&TinyModel::new("llama", 1));
    for arguments in [["explain", "0", "--only", "1"].as_slice(), &["verify", "--engine", "coremltools"]] {
        let output = bench.run(arguments);
        assert_eq!(output.status.code(), Some(2));
        let text = stderr(&output);
        assert!(
            text.starts_with(&format!(
                "anebake: error: unexpected argument '{}' found",
                arguments[arguments.len() - 2]
            )),
            "{text}"
        );
    }
}

#[test]
fn an_output_folder_given_to_inspect_leads_to_its_packages() {
    let bench = Bench::new(&TinyModel::new("llama", 1));
    std::fs::create_dir(bench.path("out")).unwrap();
    std::fs::write(bench.path("out").join("manifest.json"), "{}").unwrap();
    let output = bench.run(&["inspect", "out"]);
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(
        stderr(&output),
        "anebake: error: `out` is the output folder of a bake, not a package\n  \
         hint: name a package in it, for instance `out/block-00.mlpackage`\n"
    );
}

#[test]
fn recipe_show_resolves_where_its_options_need_that() {
    let bench = Bench::new(&TinyModel::new("llama", 1));
    let set = stdout(&bench.run(&["recipe", "show", "int8-v1", "--set", "weights.dtype=int4"]));
    assert!(set.contains("dtype = \"int4\"") && set.contains("context = 512"), "{set}");
    let origin = stdout(&bench.run(&["recipe", "show", "int8-v1", "--origin"]));
    assert!(origin.contains("context = 512  # fp16-v1 (built-in)"), "{origin}");
}

#[test]
fn json_is_json_for_the_cache_path_too() {
    let bench = Bench::new(&TinyModel::new("llama", 1));
    let answer: Value = serde_json::from_str(&stdout(&bench.run(&["cache", "path", "--json"]))).unwrap();
    assert_eq!(answer, serde_json::json!({ "path": bench.path("cache") }));
}

#[test]
fn plain_progress_counts_every_part_once_and_in_order() {
    let bench = Bench::new(&TinyModel::new("llama", 1));
    bench.convert(&[]);
    let text = stderr(&bench.convert(&[]));
    let counts: Vec<&str> = text.lines().filter_map(|line| line.split_once("  (")).map(|(_, count)| count).collect();
    assert_eq!(counts, ["1/4)", "2/4)", "3/4)", "4/4)"], "{text}");
}
