//! Models without oddities: identical files, equal bits.

use super::{assert_identical, assert_same, verify, verify_tiny};
use crate::support::{Bench, TinyModel};

const RECIPES: [&str; 8] = [
    "fp16-v1",
    "int8-v1",
    "int8-rtn-f32-v1",
    "int8-block32-v1",
    "fp16-ane-v1",
    "int8-ane-v1",
    "fp16-io-v1",
    "int8-io-v1",
];

fn every_recipe(model: &TinyModel) {
    let bench = Bench::new(model);
    for recipe in RECIPES {
        assert_identical(&verify_tiny(&bench, &["--recipe", recipe]));
    }
}

#[test]
fn a_qwen3_block_is_identical_with_every_recipe() {
    every_recipe(&TinyModel::new("qwen3", 1));
}

#[test]
fn a_llama_block_is_identical_with_every_recipe() {
    let mut model = TinyModel::new("llama", 2);
    model.config["rope_scaling"] = serde_json::json!({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
        "high_freq_factor": 4.0, "original_max_position_embeddings": 64});
    every_recipe(&model);
}

#[test]
fn a_qwen2_block_is_identical_with_every_recipe() {
    every_recipe(&TinyModel::new("qwen2", 3));
}

#[test]
fn the_list_of_recipes_is_complete_but_for_an_alias() {
    // `int8-rtn-v1` and `int8-v1` are the same bake for the time being.
    let bench = Bench::new(&TinyModel::new("llama", 4));
    let listed: serde_json::Value = serde_json::from_slice(&bench.run(&["recipe", "list", "--json"]).stdout).unwrap();
    let mut names: Vec<&str> =
        listed.as_array().unwrap().iter().map(|recipe| recipe["name"].as_str().unwrap()).collect();
    names.retain(|name| *name != "int8-rtn-v1");
    names.sort_unstable();
    let mut covered = RECIPES;
    covered.sort_unstable();
    assert_eq!(names, covered);
}

/// The head of a model, which has `outputs` parts, by every recipe and some more.
fn every_head(model: &TinyModel, outputs: u64) {
    let bench = Bench::new(model);
    let more: [&[&str]; 3] = [
        &["--set", "package.norm=layer_norm_pair"],
        &["--set", "weights.dtype=int4"],
        &["--recipe", "int8-rtn-f32-v1", "--set", "weights.dtype=float16"],
    ];
    let recipes = RECIPES.map(|recipe| ["--recipe", recipe]);
    for arguments in recipes.iter().map(|recipe| recipe.as_slice()).chain(more) {
        let base = ["--model", "model", "--set", "package.context=128", "--only", "head"];
        let report = verify(&bench, &[&base, arguments].concat());
        let head = &report["parts"][0];
        assert_eq!((&head["part"], report["parts"].as_array().unwrap().len()), (&"head".into(), 1));
        assert_same(head, 4 * outputs);
    }
}

#[test]
fn a_tied_and_an_untied_head_are_identical_with_every_recipe() {
    every_head(&TinyModel::new("qwen3", 9), 1);
    every_head(&TinyModel::new("llama", 10).untied(11), 1);
}

#[test]
fn a_head_of_several_parts_is_identical_with_every_recipe() {
    every_head(&TinyModel::new("qwen2", 12).vocabulary(13, 16_385).untied(14), 2);
}

#[test]
fn every_variant_is_identical_at_every_width_and_precision_and_for_heads_that_are_padded() {
    for (model_type, head_dim) in [("qwen3", 80), ("qwen2", 16)] {
        let bench = Bench::new(&TinyModel::shaped(model_type, 17, [64, 4, 2, head_dim, 96]));
        for kv in ["mask", "io"] {
            for query in [1, 2, 64] {
                let (kv, query) = (format!("package.kv={kv}"), format!("package.query={query}"));
                assert_identical(&verify_tiny(&bench, &["--set", &kv, "--set", &query]));
            }
            let kv = format!("package.kv={kv}");
            assert_identical(&verify_tiny(&bench, &["--recipe", "int8-rtn-f32-v1", "--set", &kv]));
        }
    }
}

#[test]
fn int4_and_mixed_overrides_are_identical() {
    let bench = Bench::new(&TinyModel::new("qwen3", 5));
    let set = |pairs: &[&'static str]| -> Vec<&'static str> { pairs.iter().flat_map(|pair| ["--set", pair]).collect() };
    assert_identical(&verify_tiny(&bench, &set(&["weights.dtype=int4"])));
    let per_block = ["weights.dtype=int4", "weights.granularity=per_block", "weights.block_size=16"];
    assert_identical(&verify_tiny(&bench, &set(&per_block)));
    std::fs::write(
        bench.path("mixed.toml"),
        "schema = 1\nname = \"mixed\"\nextends = \"int8-rtn-v1\"\n\
         [[override]]\ntensors = 'layers\\.\\d+\\.mlp\\.down_proj'\ndtype = \"float16\"\n\
         [[override]]\ntensors = 'layers\\.\\d+\\.mlp\\.up_proj'\ndtype = \"int4\"\n\
         [[override]]\ntensors = 'layers\\.0\\.self_attn\\.o_proj'\ngranularity = \"per_block\"\nblock_size = 32\n",
    )
    .unwrap();
    assert_identical(&verify_tiny(&bench, &["--recipe", "mixed.toml"]));
}

#[test]
fn a_block_of_a_float16_checkpoint_is_identical() {
    let mut model = TinyModel::new("llama", 6);
    model.dtype = safetensors::Dtype::F16;
    assert_identical(&verify_tiny(&Bench::new(&model), &[]));
}

#[test]
fn first_and_last_block_of_the_sample_are_identical() {
    let bench = Bench::new(&TinyModel::new("llama", 7));
    let report = verify(&bench, &["--model", "sample", "--only", "0,29", "--recipe", "int8-v1"]);
    assert_eq!(report["parts"].as_array().unwrap().len(), 2);
    report["parts"].as_array().unwrap().iter().for_each(assert_identical);
}

#[test]
#[ignore = "needs 60 s and 500 MB"]
fn a_block_of_the_shape_of_qwen3_0_6b_is_identical() {
    let model = TinyModel::shaped("qwen3", 8, [1024, 16, 8, 128, 3072]);
    let bench = Bench::new(&model);
    let report = verify(&bench, &["--model", "model", "--only", "0", "--recipe", "int8-rtn-v1"]);
    assert_identical(&report["parts"][0]);
}
