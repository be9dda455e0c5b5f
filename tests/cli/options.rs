//! Recipes, keys and options that cannot be used.

use super::{convert, refused};
use crate::support::{Bench, TinyModel, stderr};

fn bench() -> Bench {
    Bench::new(&TinyModel::new("llama", 1))
}

#[test]
fn recipes_that_do_not_exist_or_cannot_be_read() {
    let bench = bench();
    let list = "there are `int8-v1`, `int8-ane-v1`, `int8-io-v1`, `int8-rtn-v1`, `int8-rtn-f32-v1`, \
                `int8-block32-v1`, `fp16-v1`, `fp16-ane-v1`, `fp16-io-v1`";
    refused(
        &convert(&bench, &["--recipe", "int8-v2"]),
        2,
        &format!("anebake: error: no built-in recipe is named `int8-v2`; {list}\n  hint: did you mean `int8-v1`?"),
    );
    refused(
        &convert(&bench, &["--recipe", "mine"]),
        2,
        &format!(
            "anebake: error: no built-in recipe is named `mine`; {list}\n  hint: a recipe file is named by its path: \
             `./mine.toml`"
        ),
    );
    refused(
        &convert(&bench, &["--recipe", "./mine.toml"]),
        2,
        "anebake: error: cannot read recipe `./mine.toml`\n  caused by: No such file or directory (os error 2)",
    );
}

#[test]
fn keys_of_a_recipe_file_that_are_unknown_wrong_or_match_nothing() {
    let bench = bench();
    for (text, expected) in [
        ("[wieghts]\ndtype = \"int8\"", "unknown key `wieghts`\n  hint: did you mean `weights`?"),
        (
            "[weights]\ndtype = \"int9\"",
            "`weights.dtype` is `int9`, not one of `float16`, `int8`, `int4`\n  hint: did you mean `int8`?",
        ),
        (
            "[[override]]\ntensors = 'layers\\.9\\..*'\ndtype = \"float16\"",
            "`override[0].tensors` matches none of the 15 projections of this model: `layers\\.9\\..*`\n  hint: it must \
             match a whole name, for instance `layers.1.mlp.down_proj`",
        ),
    ] {
        std::fs::write(bench.path("mine.toml"), format!("schema = 1\nname = \"mine\"\n{text}\n")).unwrap();
        let output = convert(&bench, &["--recipe", "./mine.toml"]);
        refused(&output, 2, &format!("anebake: error: recipe `./mine.toml`: {expected}"));
    }
}

#[test]
fn values_on_the_command_line_that_cannot_be_used() {
    let bench = bench();
    for (arguments, expected) in [
        (
            &["--set", "weights.dtipe=int8"][..],
            "`--set`: unknown key `weights.dtipe`\n  hint: did you mean `weights.dtype`?",
        ),
        (&["--set", "weights"], "`--set`: `weights` has no `=`\n  hint: write `--set weights.dtype=int8`"),
        (
            &["--set", "weights.dtype=int9"],
            "`--set`: `weights.dtype` is `int9`, not one of `float16`, `int8`, `int4`\n  hint: did you mean `int8`?",
        ),
        (
            &["--set", "package.context=2048"],
            "`package.context` is 2048, the model was made for 1024 positions\n  hint: add `--set package.context=1024`",
        ),
        (
            &["--recipe", "int8-block32-v1", "--set", "weights.block_size=7"],
            "tensor `layers.0.self_attn.q_proj.weight`: dim 1 is 64, not a multiple of block size 7\n  hint: choose a \
             `weights.block_size` that divides it, or an `[[override]]` for this tensor",
        ),
        (
            &["--set", "weights.granularity=per_tensor"],
            "`weights.granularity = \"per_tensor\"` needs the engine `coremltools`: its scales are stored in the \
             program, which the native engine does not rewrite\n  hint: add `--engine coremltools`, or use \
             `per_channel`, which is never less exact",
        ),
    ] {
        refused(&convert(&bench, arguments), 2, &format!("anebake: error: {expected}"));
    }
    for (only, part) in [("2", "2"), ("0,x", "x"), ("1-0", "1-0"), ("", "")] {
        refused(
            &convert(&bench, &["--only", only]),
            2,
            &format!(
                "anebake: error: `--only {only}`: `{part}` is no block of a model with 2 blocks\n  hint: blocks are 0 to \
                 1; write for instance `0,3,8-11`, or `head`"
            ),
        );
    }
}

#[test]
fn what_the_command_line_itself_does_not_take() {
    let bench = bench();
    for (arguments, needle) in [
        (&["convert", "--jobs", "0"][..], "invalid value '0' for '--jobs <N>'"),
        (&["convert", "--frozen", "--force"], "'--frozen' cannot be used with '--force'"),
        (&["convert", "--nonsense"], "unexpected argument '--nonsense'"),
        (&["conver"], "a similar subcommand exists: 'convert'"),
        (&[], "requires a subcommand"),
        (&["cache", "gc", "--max-size", "much"], "`--max-size much` is no size\n  hint: write for instance `500MB`"),
        (&["cache", "gc", "--max-age", "old"], "`--max-age old` is no age\n  hint: write for instance `12h`"),
        (&["explain", "2", "--model", "model"], "`2` is no block of a model with 2 blocks"),
    ] {
        let output = bench.run(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(stderr(&output).contains(needle), "{}", stderr(&output));
        assert!(output.stdout.is_empty());
    }
    assert!(!bench.path("out").exists());
}

#[test]
fn a_frozen_bake_that_misses_ends_with_status_5_and_one_that_hits_with_0() {
    let bench = bench();
    refused(
        &convert(&bench, &["--frozen", "--only", "1"]),
        5,
        "anebake: error: block 1 is not in the cache\n  hint: bake it without `--frozen`; `anebake explain` tells what \
         changed",
    );
    assert!(!bench.path("out").exists());
    bench.convert(&["--only", "1"]);
    bench.convert(&["--only", "1", "--frozen"]);
    assert_eq!(convert(&bench, &["--frozen"]).status.code(), Some(5));
}
