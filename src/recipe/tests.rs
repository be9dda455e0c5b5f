use std::path::Path;

use proptest::prelude::*;

use super::*;
use crate::error::{Status, hints, status};

fn write(folder: &Path, name: &str, text: &str) -> String {
    let path = folder.join(name);
    std::fs::write(&path, text).unwrap();
    path.display().to_string()
}

/// Loads `body` below `schema = 1` from a file called `r.toml`, with its folder taken out of messages.
fn load_text(body: &str) -> Result<Recipe, (String, Option<String>)> {
    load_with(body, &[])
}

fn load_with(body: &str, sets: &[&str]) -> Result<Recipe, (String, Option<String>)> {
    let folder = tempfile::tempdir().unwrap();
    let path = write(folder.path(), "r.toml", &format!("schema = 1\n{body}"));
    let sets: Vec<String> = sets.iter().map(|set| (*set).to_owned()).collect();
    Recipe::load(&path, &sets).map_err(|error| {
        assert_eq!(status(&error), Status::Usage, "{error:#}");
        let text = format!("{error:#}").replace(&format!("{}/", folder.path().display()), "");
        (text, hints(&error).next().map(str::to_owned))
    })
}

fn refusal(body: &str) -> (String, String) {
    let (message, hint) = load_text(body).unwrap_err();
    (message, hint.unwrap_or_default())
}

fn quantized(dtype: WeightDtype, granularity: Granularity, block_size: Option<usize>) -> Weights {
    Weights::Quantized(Quantization {
        scheme: Scheme::LinearSymmetric,
        dtype,
        granularity,
        block_size,
        rounding: Rounding::Nearest,
    })
}

#[test]
fn every_built_in_recipe_loads_under_its_own_name_and_describes_itself() {
    for entry in builtin::ALL {
        let recipe = Recipe::load(entry.name, &[]).unwrap();
        assert_eq!(recipe.name, entry.name);
        assert!(!recipe.description.is_empty());
        assert_eq!(recipe.model.source.unwrap().to_string(), "hf:Qwen/Qwen3-0.6B");
    }
    let files = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/recipes")).unwrap();
    let mut files: Vec<_> = files.map(|file| file.unwrap().file_name().into_string().unwrap()).collect();
    let mut names: Vec<_> = builtin::ALL.iter().map(|entry| format!("{}.toml", entry.name)).collect();
    files.sort();
    names.sort();
    assert_eq!(files, names, "each file of recipes/ is compiled in");
}

#[test]
fn built_in_recipes_mean_what_their_names_say() {
    let weights = |name| Recipe::load(name, &[]).unwrap().weights;
    let int8 = quantized(WeightDtype::Int8, Granularity::PerChannel, None);
    assert_eq!(weights("fp16-v1"), Weights::Float16);
    assert_eq!(weights("int8-rtn-v1"), int8);
    assert_eq!(weights("int8-v1"), int8);
    assert_eq!(weights("int8-rtn-f32-v1"), int8);
    assert_eq!(weights("int8-block32-v1"), quantized(WeightDtype::Int8, Granularity::PerBlock, Some(32)));
    for (name, kv) in [("ane", KvCache::Mask), ("io", KvCache::Io)] {
        for (weights, base) in [("int8", "int8-v1"), ("fp16", "fp16-v1")] {
            let (recipe, base) =
                (Recipe::load(&format!("{weights}-{name}-v1"), &[]).unwrap(), Recipe::load(base, &[]).unwrap());
            assert_eq!((&recipe.weights, &recipe.gate), (&base.weights, &base.gate));
            assert_eq!(recipe.package, Package { kv, query: 4, ..base.package });
            assert_eq!((recipe.package.rows(1), recipe.package.rows(64)), (4, 64));
        }
    }
    let precision = |name| Recipe::load(name, &[]).unwrap().package.compute_precision;
    assert_eq!(precision("int8-rtn-v1"), ComputePrecision::Float16);
    assert_eq!(precision("int8-rtn-f32-v1"), ComputePrecision::Float32);
}

#[test]
fn frozen_recipes_keep_their_meaning() {
    let package = |precision: &str| {
        json!({
            "target": "macOS15", "compute_precision": precision, "context": 512, "norm": "max_scaled", "kv": "slice",
            "query": 1,
            "functions": { "decode": 1, "prefill": 64 },
        })
    };
    let int8 = json!({
        "dtype": "int8", "scheme": "linear_symmetric", "granularity": "per_channel", "rounding": "nearest",
    });
    let blocks = json!({
        "dtype": "int8", "scheme": "linear_symmetric", "granularity": "per_block", "block_size": 32,
        "rounding": "nearest",
    });
    let published = [
        ("int8-rtn-v1", json!({ "package": package("float16"), "weights": int8 })),
        ("int8-rtn-f32-v1", json!({ "package": package("float32"), "weights": int8 })),
        ("int8-block32-v1", json!({ "package": package("float16"), "weights": blocks })),
        ("fp16-v1", json!({ "package": package("float16"), "weights": { "dtype": "float16" } })),
    ];
    let frozen: Vec<_> = list().unwrap().into_iter().filter(|entry| entry.frozen).map(|entry| entry.name).collect();
    assert_eq!(frozen, published.clone().map(|(name, _)| name));
    for (name, expected) in published {
        let document = Recipe::load(name, &[]).unwrap().build_document();
        assert_eq!(document, expected, "`{name}` is published: give a change of meaning a new name");
    }
}

#[test]
fn the_list_begins_with_the_flagship_and_says_that_it_is_not_frozen() {
    let list = list().unwrap();
    assert_eq!((list[0].name.as_str(), list[0].frozen), ("int8-v1", false));
    assert!(list[0].description.contains("Not yet frozen"));
    let open: Vec<_> = list.iter().filter(|entry| !entry.frozen).map(|entry| &*entry.name).collect();
    assert_eq!(open, ["int8-v1", "int8-ane-v1", "int8-io-v1", "fp16-ane-v1", "fp16-io-v1"]);
}

#[test]
fn a_recipe_without_parents_gets_defaults_and_says_so() {
    let recipe = load_text("").unwrap();
    let base = Recipe::load("fp16-v1", &[]).unwrap();
    assert_eq!(recipe.name, "r");
    assert_eq!((&recipe.package, &recipe.weights, &recipe.gate), (&base.package, &base.weights, &base.gate));
    assert_eq!(recipe.model.source, None);
    assert_eq!(recipe.origins()["package.functions.prefill"], Origin::Default);
    assert_eq!(recipe.origins()["weights.dtype"], Origin::Default);
}

#[test]
fn unknown_keys_name_file_and_path_and_suggest() {
    for (body, message, hint) in [
        ("[package]\ncontxt = 256", "recipe `r.toml`: unknown key `package.contxt`", "did you mean `package.context`?"),
        ("[pakage]\n", "recipe `r.toml`: unknown key `pakage`", "did you mean `package`?"),
        (
            "[package]\nfunctions = { decode = 1, verify = 8 }",
            "recipe `r.toml`: unknown key `package.functions.verify`",
            "the keys here are `decode`, `prefill`",
        ),
        (
            "[[override]]\ntensors = 'x'\ndtipe = 'int8'",
            "recipe `r.toml`: unknown key `override[0].dtipe`",
            "did you mean `override[0].dtype`?",
        ),
    ] {
        assert_eq!(refusal(body), (message.to_owned(), hint.to_owned()));
    }
}

#[test]
fn wrong_types_words_and_ranges_name_value_and_what_is_allowed() {
    for (body, message) in [
        ("weights = 8", "`weights` is the integer 8, not a table"),
        ("[package]\ncontext = '512'", "`package.context` is the string `512`, not an integer"),
        ("[package]\ncontext = 512.5", "`package.context` is the number 512.5, not an integer"),
        ("[gate]\nenforce = 'no'", "`gate.enforce` is the string `no`, not true or false"),
        ("[gate]\nmin_cosine = true", "`gate.min_cosine` is true, not a number"),
        ("override = 3", "`override` is the integer 3, not an array"),
        ("name = 7", "`name` is the integer 7, not a string"),
        ("[weights]\ndtype = 'int9'", "`weights.dtype` is `int9`, not one of `float16`, `int8`, `int4`"),
        ("[package]\nkv = 'ring'", "`package.kv` is `ring`, not one of `slice`, `mask`, `io`"),
        ("[package]\nnorm = 'rms'", "`package.norm` is `rms`, not one of `max_scaled`, `layer_norm_pair`"),
        ("[package]\ntarget = 'macOS26'", "`package.target` is `macOS26`, not `macOS15`"),
        ("[weights]\nrounding = 'gptq'", "`weights.rounding` is `gptq`, not `nearest`"),
        ("[package]\nquery = 0", "`package.query` is 0, not in 1..=64"),
        ("[package]\nquery = 65", "`package.query` is 65, not in 1..=64"),
        (
            "[package]\nquery = 2",
            "`package.query` is 2, but `package.kv` is `slice`, which would write the padding over the last positions",
        ),
        (
            "[package]\nkv = 'mask'\nquery = 9\nfunctions.prefill = 8",
            "`package.query` is 9, more than `package.functions.prefill`, 8",
        ),
        ("[package]\ncontext = 32", "`package.context` is 32, not in 64..=131072"),
        ("[package]\ncontext = 131073", "`package.context` is 131073, not in 64..=131072"),
        ("[package]\nfunctions = { decode = 2 }", "`package.functions.decode` is 2, not 1"),
        ("[package]\nfunctions = { prefill = 1 }", "`package.functions.prefill` is 1, not in 2..=512"),
        ("[gate]\nmin_cosine = 1.5", "`gate.min_cosine` is 1.5, not in 0..=1"),
        ("[gate]\nmin_top1 = nan", "`gate.min_top1` is nan, not in 0..=1"),
        ("[gate]\nsteps = 0", "`gate.steps` is 0, not in 1..=1024"),
        ("[gate]\nprompts = 'a'", "`gate.prompts` is the string `a`, not an array"),
        ("[gate]\nprompts = ['a', 3]", "`gate.prompts[1]` is the integer 3, not a string"),
        ("[gate]\nprompts = []", "`gate.prompts` is empty"),
        ("name = 'a b'", "`name` is `a b`, not letters, digits, `.`, `_` and `-`"),
        (
            "[package]\ncontext = 64\nfunctions = { prefill = 65 }",
            "`package.functions.prefill` is 65, more than `package.context`, 64",
        ),
        ("[model]\nsource = 'hf:qwen'", "`model.source` is `hf:qwen`: `qwen` is no repository of the hub"),
    ] {
        assert_eq!(refusal(body).0, format!("recipe `r.toml`: {message}"));
    }
    assert_eq!(refusal("[weights]\ndtype = 'int9'").1, "did you mean `int8`?");
}

#[test]
fn schema_is_required_and_a_newer_one_is_told_apart() {
    let folder = tempfile::tempdir().unwrap();
    for (text, message) in [
        ("name = 'a'", "key `schema` is missing"),
        ("schema = 2", "`schema` is 2, this anebake reads 1"),
        ("schema = 0", "`schema` is 0, not 1"),
    ] {
        let path = write(folder.path(), "s.toml", text);
        let error = Recipe::load(&path, &[]).unwrap_err();
        assert_eq!(error.to_string(), format!("recipe `{path}`: {message}"));
        assert_eq!(status(&error), Status::Usage);
    }
}

#[test]
fn text_that_is_not_toml_names_the_line() {
    let (message, _) = refusal("[weights]\ndtype = ");
    assert!(message.starts_with("recipe `r.toml`: not TOML at line 3: "), "{message}");
}

#[test]
fn keys_without_meaning_are_refused_where_they_are_written() {
    for (body, message, hint) in [
        (
            "[weights]\ndtype = 'int8'\nblock_size = 32",
            "`weights.block_size` has no meaning with `weights.granularity` `per_channel`",
            "remove `weights.block_size`, or set `weights.granularity` to `per_block`",
        ),
        (
            "[weights]\ndtype = 'int8'\ngranularity = 'per_block'",
            "`weights.granularity` is `per_block` without a block size",
            "add `weights.block_size`, for instance 32",
        ),
        (
            "extends = 'fp16-v1'\n[weights]\ngranularity = 'per_tensor'",
            "`weights.granularity` has no meaning with `weights.dtype` `float16`",
            "remove `weights.granularity`, or set `weights.dtype` to `int8` or `int4`",
        ),
        (
            "[[override]]\ntensors = 'x'\nblock_size = 32",
            "`override[0].block_size` has no meaning with `override[0].dtype` `float16`",
            "remove `override[0].block_size`, or set `override[0].dtype` to `int8` or `int4`",
        ),
        (
            "[[override]]\ndtype = 'float16'",
            "`override[0].tensors` is missing",
            "add a pattern, for instance tensors = 'layers\\.0\\.mlp\\.down_proj'",
        ),
        (
            "[[override]]\ntensors = 'x'",
            "`override[0]` changes nothing for `x`",
            "add a key of `[weights]`, for instance dtype = \"float16\"",
        ),
        (
            "[[override]]\ntensors = 'layers.(0'\ndtype = 'int8'",
            "`override[0].tensors` is no regular expression: `layers.(0`: unclosed group",
            "escape a literal dot as `\\.`, for instance 'layers\\.(0|27)\\.mlp\\.down_proj'",
        ),
    ] {
        assert_eq!(refusal(body), (format!("recipe `r.toml`: {message}"), hint.to_owned()));
    }
}

#[test]
fn inherited_keys_that_lose_their_meaning_are_dropped() {
    let recipe = load_text("extends = 'int8-block32-v1'\n[weights]\ngranularity = 'per_channel'").unwrap();
    assert_eq!(recipe.weights, quantized(WeightDtype::Int8, Granularity::PerChannel, None));
    assert!(!recipe.origins().contains_key("weights.block_size"));
    let recipe = load_text("extends = 'int8-block32-v1'\n[weights]\ndtype = 'float16'").unwrap();
    assert_eq!(recipe.weights, Weights::Float16);
    let recipe = load_text("extends = 'int8-block32-v1'\n[weights]\nblock_size = 64").unwrap();
    assert_eq!(recipe.weights, quantized(WeightDtype::Int8, Granularity::PerBlock, Some(64)));
}

#[test]
fn an_unknown_built_in_name_lists_and_suggests() {
    let error = Recipe::load("int8-rtn-v2", &[]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "no built-in recipe is named `int8-rtn-v2`; there are `int8-v1`, `int8-ane-v1`, `int8-io-v1`, \
         `int8-rtn-v1`, `int8-rtn-f32-v1`, `int8-block32-v1`, `fp16-v1`, `fp16-ane-v1`, `fp16-io-v1`"
    );
    assert_eq!(hints(&error).collect::<Vec<_>>(), ["did you mean `int8-rtn-v1`?"]);
    let error = Recipe::load("mine", &[]).unwrap_err();
    assert_eq!(hints(&error).collect::<Vec<_>>(), ["a recipe file is named by its path: `./mine.toml`"]);
    assert_eq!(status(&error), Status::Usage);
}

#[test]
fn a_missing_recipe_file_is_a_usage_fault_that_names_it() {
    let error = Recipe::load("nowhere/r.toml", &[]).unwrap_err();
    assert_eq!((status(&error), error.to_string()), (Status::Usage, "cannot read recipe `nowhere/r.toml`".to_owned()));
}

#[test]
fn parents_are_found_beside_the_file_and_each_value_remembers_its_layer() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("base")).unwrap();
    let base = write(
        &folder.path().join("base"),
        "b.toml",
        "schema = 1\nname = 'b'\ndescription = 'd'\nextends = 'int8-rtn-v1'\n[model]\nsource = 'ckpt'\n[package]\ncontext = 256",
    );
    let top = write(folder.path(), "top.toml", "schema = 1\nextends = 'base/b.toml'\n[gate]\nsteps = 4");
    let recipe =
        Recipe::load(&top, &["weights.dtype=int4".to_owned(), "package.functions.prefill=32".to_owned()]).unwrap();
    assert_eq!((recipe.name.as_str(), recipe.description.as_str()), ("top", ""));
    assert_eq!((recipe.package.context, recipe.package.functions.prefill, recipe.gate.steps), (256, 32, 4));
    assert_eq!(recipe.weights.dtype(), WeightDtype::Int4);
    let ckpt = folder.path().join("base/ckpt");
    assert_eq!(recipe.model.source, Some(ModelSource::Folder(ckpt)), "a path starts at the file that says it");
    let origins = recipe.origins();
    assert_eq!(origins["package.context"], Origin::File(base.into()));
    assert_eq!(origins["gate.steps"], Origin::File(top.into()));
    assert_eq!(origins["weights.granularity"], Origin::BuiltIn("int8-rtn-v1".to_owned()));
    assert_eq!(origins["package.target"], Origin::BuiltIn("fp16-v1".to_owned()));
    assert_eq!(origins["weights.dtype"], Origin::Set);
    assert_eq!(origins["name"], Origin::Default);
}

#[test]
fn a_cycle_of_parents_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let a = write(folder.path(), "a.toml", "schema = 1\nextends = './b.toml'");
    write(folder.path(), "b.toml", "schema = 1\nextends = 'a.toml'");
    let error = Recipe::load(&a, &[]).unwrap_err();
    assert!(error.to_string().ends_with("a.toml`: `extends` leads back to the recipe itself"), "{error}");
    assert_eq!(status(&error), Status::Usage);
}

#[test]
fn set_takes_toml_values_bare_words_and_whole_overrides() {
    let recipe = load_with(
        "",
        &[
            "weights.dtype = int8",
            "gate.enforce=false",
            "package.context=1024",
            "override=[{ tensors = 'layers\\.0\\..*', dtype = \"int4\" }]",
        ],
    )
    .unwrap();
    assert_eq!(recipe.weights.dtype(), WeightDtype::Int8);
    assert_eq!((recipe.gate.enforce, recipe.package.context), (false, 1024));
    assert_eq!(recipe.weights_for(0, "mlp.up_proj").dtype(), WeightDtype::Int4);
    assert_eq!(recipe.origins()["override[0]"], Origin::Set);
}

#[test]
fn set_refuses_what_it_cannot_set() {
    for (set, message) in [
        ("weights.dtype", "`--set`: `weights.dtype` has no `=`"),
        ("schema=1", "`--set`: `schema` cannot be set"),
        ("extends=fp16-v1", "`--set`: `extends` cannot be set"),
        ("weights.dtipe=int8", "`--set`: unknown key `weights.dtipe`"),
        ("weights=int8", "`--set`: `weights` is the string `int8`, not a table"),
        ("package.context=5", "`--set`: `package.context` is 5, not in 64..=131072"),
        ("package.context.x=5", "`--set`: `package.context` is a table, not an integer"),
        ("=1", "`--set`: unknown key ``"),
        (
            "weights.dtype=int8\"\n[gate]\nsteps = 1",
            "`--set`: `weights.dtype` is `int8\"\n[gate]\nsteps = 1`, not one of `float16`, `int8`, `int4`",
        ),
    ] {
        assert_eq!(load_with("", &[set]).unwrap_err().0, message);
    }
    let clash = load_with("", &["gate.steps=1", "gate.steps.x=1"]).unwrap_err();
    assert_eq!(clash.0, "`--set`: `gate.steps.x` is below or above a key that is set already");
}

#[test]
fn the_last_override_that_matches_the_whole_name_wins_over_the_weights_alone() {
    let folder = tempfile::tempdir().unwrap();
    write(
        folder.path(),
        "base.toml",
        "schema = 1\nextends = 'int8-block32-v1'\n[[override]]\ntensors = '.*\\.down_proj'\ndtype = 'float16'",
    );
    let top = write(
        folder.path(),
        "top.toml",
        "schema = 1\nextends = 'base.toml'\n[[override]]\ntensors = 'layers\\.1\\.mlp\\.(up|down)_proj'\ngranularity = 'per_tensor'",
    );
    let recipe = Recipe::load(&top, &[]).unwrap();
    let blocks = quantized(WeightDtype::Int8, Granularity::PerBlock, Some(32));
    let whole = quantized(WeightDtype::Int8, Granularity::PerTensor, None);
    for (block, role, expected) in [
        (0, "mlp.down_proj.weight", Weights::Float16),
        (0, "mlp.down_proj", Weights::Float16),
        (0, "mlp.up_proj.weight", blocks),
        (1, "mlp.up_proj.weight", whole),
        (1, "mlp.down_proj.weight", whole),
        (11, "mlp.up_proj.weight", blocks),
        (1, "mlp.up_proj.bias", blocks),
    ] {
        assert_eq!(recipe.weights_for(block, role), expected, "{block} {role}");
    }
}

#[test]
fn an_override_of_the_output_matrix_matches_it_alone() {
    let recipe = load_text("[[override]]\ntensors = 'lm_head'\ndtype = 'int8'").unwrap();
    recipe.check_overrides(2, &["mlp.down_proj.weight"]).unwrap();
    assert_eq!(recipe.weights_of(OUTPUT_MATRIX).dtype(), WeightDtype::Int8);
    assert_eq!(recipe.weights_for(0, "mlp.down_proj.weight").dtype(), WeightDtype::Float16);
    let all = load_text("[[override]]\ntensors = '.*'\ndtype = 'int8'").unwrap();
    assert_eq!(all.weights_of(OUTPUT_MATRIX).dtype(), WeightDtype::Int8);
}

#[test]
fn an_override_that_matches_no_tensor_of_the_model_is_refused() {
    let roles = ["self_attn.q_proj.weight", "mlp.down_proj.weight"];
    let recipe = load_text("[[override]]\ntensors = 'layers\\.27\\..*'\ndtype = 'int8'").unwrap();
    recipe.check_overrides(28, &roles).unwrap();
    let error = recipe.check_overrides(27, &roles).unwrap_err();
    assert_eq!(status(&error), Status::Usage);
    let text = error.to_string();
    let end = "r.toml`: `override[0].tensors` matches none of the 55 projections of this model: `layers\\.27\\..*`";
    assert!(text.ends_with(end), "{text}");
    assert_eq!(
        hints(&error).collect::<Vec<_>>(),
        ["it must match a whole name, for instance `layers.26.mlp.down_proj`"]
    );
}

#[test]
fn the_build_document_leaves_out_what_does_not_decide_bytes() {
    let document = |sets: &[&str]| load_with("extends = 'int8-rtn-v1'", sets).unwrap().build_document();
    let base = document(&[]);
    for set in [
        "name=other",
        "description=other",
        "model.source=sample",
        "gate.steps=3",
        "gate.enforce=true",
        "gate.prompts=['a']",
    ] {
        assert_eq!(document(&[set]), base, "{set}");
    }
    for set in [
        "package.compute_precision=float32",
        "package.context=1024",
        "package.functions.prefill=32",
        "package.norm=layer_norm_pair",
        "package.kv=mask",
        "weights.dtype=int4",
        "weights.granularity=per_tensor",
    ] {
        assert_ne!(document(&[set]), base, "{set}");
    }
}

#[test]
fn resolved_text_shows_each_value_with_its_origin() {
    let recipe = Recipe::load("int8-rtn-f32-v1", &["gate.steps=4".to_owned()]).unwrap();
    insta::assert_snapshot!(recipe.resolved_toml_with_origins(), @r#"
    schema = 1  # int8-rtn-f32-v1 (built-in)
    name = "int8-rtn-f32-v1"  # int8-rtn-f32-v1 (built-in)
    description = "int8-rtn-v1 with float32 compute, which the ANE does not run: CPU and GPU only"  # int8-rtn-f32-v1 (built-in)

    [model]
    source = "hf:Qwen/Qwen3-0.6B"  # fp16-v1 (built-in)

    [package]
    target = "macOS15"  # fp16-v1 (built-in)
    compute_precision = "float32"  # int8-rtn-f32-v1 (built-in)
    context = 512  # fp16-v1 (built-in)
    norm = "max_scaled"  # fp16-v1 (built-in)
    kv = "slice"  # fp16-v1 (built-in)
    query = 1  # default

    [package.functions]
    decode = 1  # fp16-v1 (built-in)
    prefill = 64  # fp16-v1 (built-in)

    [weights]
    dtype = "int8"  # int8-rtn-v1 (built-in)
    scheme = "linear_symmetric"  # int8-rtn-v1 (built-in)
    granularity = "per_channel"  # int8-rtn-v1 (built-in)
    rounding = "nearest"  # int8-rtn-v1 (built-in)

    [gate]
    min_cosine = 0.999  # fp16-v1 (built-in)
    min_top1 = 1.0  # fp16-v1 (built-in)
    steps = 4  # --set
    enforce = false  # int8-rtn-v1 (built-in)
    prompts = ["The capital of France is", "2 plus 2 equals", "The opposite of hot is", "Once upon a time there was a", "The chemical symbol for gold is"]  # default

    [smoke]
    require = ["load", "numerics"]  # default
    min_cosine = 0.999  # default
    "#);
}

fn weight_keys() -> impl Strategy<Value = String> {
    let dtype = prop::sample::select(vec!["int8", "int4"]);
    let granularity = prop_oneof![
        Just(String::new()),
        Just("granularity = 'per_channel'\n".to_owned()),
        Just("granularity = 'per_tensor'\n".to_owned()),
        (2usize..=65536).prop_map(|size| format!("granularity = 'per_block'\nblock_size = {size}\n")),
    ];
    prop_oneof![
        Just("dtype = 'float16'\n".to_owned()),
        (dtype, granularity).prop_map(|(dtype, granularity)| format!("dtype = '{dtype}'\n{granularity}")),
    ]
}

proptest! {
    #[test]
    fn resolved_toml_reads_back_to_an_equal_recipe(
        name in "[A-Za-z0-9][A-Za-z0-9._-]{0,12}",
        description in any::<String>(),
        source in prop::option::of(prop::sample::select(vec!["sample", "hf:a/b@refs/pr/1", "x y/z", "m.gguf"])),
        context in 512usize..=131_072,
        prefill in 2usize..=512,
        precision in prop::sample::select(ComputePrecision::ALL),
        norm in prop::sample::select(Norm::ALL),
        (kv, query) in prop_oneof![Just((KvCache::Slice, 1)), (prop::sample::select(KvCache::ALL), 1usize..=2)],
        weights in weight_keys(),
        overrides in prop::collection::vec(("[a-z.*\"'\\n]{1,8}", weight_keys()), 0..3),
        cosine in 0.0f64..=1.0,
        top1 in 0.0f64..=1.0,
        steps in 1usize..=1024,
        enforce in any::<bool>(),
        prompts in prop::collection::vec(any::<String>(), 1..4),
    ) {
        let mut text = format!("name = '{name}'\ndescription = {}\n", toml::Value::String(description));
        if let Some(source) = source {
            text += &format!("[model]\nsource = '{source}'\n");
        }
        text += &format!("[package]\ncontext = {context}\nfunctions.prefill = {prefill}\ncompute_precision = '{precision}'\nnorm = '{norm}'\n");
        let query = if kv == KvCache::Slice { 1 } else { query };
        text += &format!("kv = '{kv}'\nquery = {query}\n");
        text += &format!("[weights]\n{weights}[gate]\nmin_cosine = {cosine}\nmin_top1 = {top1}\nsteps = {steps}\nenforce = {enforce}\n");
        let prompts: Vec<toml::Value> = prompts.into_iter().map(toml::Value::String).collect();
        text += &format!("prompts = {}\n", toml::Value::Array(prompts));
        for (tensors, keys) in overrides.iter().filter(|(tensors, _)| regex::Regex::new(tensors).is_ok()) {
            text += &format!("[[override]]\ntensors = {}\n{keys}", toml::Value::String(tensors.clone()));
        }
        let recipe = Recipe::load_from_text(&format!("schema = 1\n{text}"))?;
        prop_assert_eq!(recipe.gate.min_cosine, cosine);
        for printed in [recipe.resolved_toml(), recipe.resolved_toml_with_origins()] {
            prop_assert_eq!(&Recipe::load_from_text(&printed)?, &recipe);
        }
    }
}

impl Recipe {
    fn load_from_text(text: &str) -> Result<Self, TestCaseError> {
        layers::parse(text, Origin::File("printed.toml".into()))
            .and_then(|layer| Self::from_layers(vec![layer], None))
            .map_err(|error| TestCaseError::fail(format!("{error:#}\n{text}")))
    }
}
