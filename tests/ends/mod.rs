//! What a whole bake writes beside the blocks: head, embedding, tokenizer, `chain.json`.

use std::collections::BTreeMap;
use std::path::Path;

use anebake::bake::manifest::BakeManifest;
use anebake::bake::output::record_gate;
use anebake::chain::{ChainFile, KvCache, TokenizerInfo};
use anebake::mlpackage::Package;
use half::{bf16, f16};
use serde_json::{Value, json};

use crate::support::{Bench, TinyModel, files, stderr, stdout};

const EMBEDDING: &str = "model.embed_tokens.weight";

/// What `explain` says of a part: its key and whether it is cached.
fn explained(bench: &Bench, part: &str, arguments: &[&str]) -> (String, bool) {
    let base = ["explain", part, "--json", "--model", "model", "--set", "package.context=128"];
    let output = bench.run(&[&base, arguments].concat());
    let report: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", stderr(&output)));
    assert_eq!(report["part"], if part == "0" { "block-00" } else { part });
    (report["key"].as_str().unwrap().to_owned(), report["cached"].as_bool().unwrap())
}

const PARTS: [&str; 3] = ["0", "head", "embedding"];

fn keys(bench: &Bench, arguments: &[&str]) -> [String; 3] {
    PARTS.map(|part| explained(bench, part, arguments).0)
}

#[test]
fn a_key_follows_what_its_part_is_made_of_and_nothing_else() {
    let base = TinyModel::new("qwen3", 1).untied(2);
    let bench = Bench::new(&base);
    let before = keys(&bench, &[]);
    let same = |arguments: &[&str]| {
        let after = keys(&bench, arguments);
        [0, 1, 2].map(|part| after[part] == before[part])
    };
    for (arguments, expected) in [
        (&["--set", "package.context=256"][..], [false, true, true]),
        (&["--set", "package.functions.prefill=32"], [false, false, true]),
        (&["--set", "package.norm=layer_norm_pair"], [false, false, true]),
        (&["--set", "package.compute_precision=float32"], [false, false, true]),
        (&["--set", "package.kv=mask"], [false, true, true]),
        (&["--set", "package.kv=io"], [false, true, true]),
        (&["--recipe", "int8-ane-v1"], [false, false, true]),
        (&["--set", "weights.dtype=int4"], [false, false, true]),
        (&["--engine", "coremltools"], [false, false, true]),
        (&["--recipe", "int8-rtn-v1"], [true, true, true]),
    ] {
        assert_eq!(same(arguments), expected, "{arguments:?}");
    }
    let text = "schema = 1\nextends = \"int8-v1\"\n[[override]]\ntensors = 'lm_head'\ndtype = \"float16\"\n";
    std::fs::write(bench.path("head.toml"), text).unwrap();
    assert_eq!(same(&["--recipe", "./head.toml"]), [true, false, true]);

    let changed = |change: &dyn Fn(&mut TinyModel)| {
        let mut model = base.clone();
        change(&mut model);
        model.write(&bench.path("model"));
        same(&[])
    };
    let value = |name: &'static str| move |model: &mut TinyModel| model.values(name)[5] += 1.0;
    assert_eq!(changed(&value("lm_head.weight")), [true, false, true]);
    assert_eq!(changed(&value("model.norm.weight")), [true, false, true]);
    assert_eq!(changed(&value(EMBEDDING)), [true, true, false]);
    assert_eq!(changed(&value("model.layers.0.mlp.up_proj.weight")), [false, true, true]);
    assert_eq!(changed(&|model| model.config["rms_norm_eps"] = 1e-5.into()), [false, false, true]);
    assert_eq!(changed(&|model| model.config["rope_theta"] = 5e5.into()), [false, true, true]);

    let mut tied = TinyModel::new("qwen3", 1);
    tied.write(&bench.path("model"));
    let before = keys(&bench, &[]);
    tied.values(EMBEDDING)[5] += 1.0;
    tied.write(&bench.path("model"));
    let after = keys(&bench, &[]);
    assert_eq!([0, 1, 2].map(|part| after[part] == before[part]), [true, false, false]);
}

#[test]
fn an_override_of_the_output_matrix_leaves_it_alone_in_float16_tied_or_not() {
    for model in [TinyModel::new("llama", 3), TinyModel::new("llama", 3).untied(4)] {
        let bench = Bench::new(&model);
        let text = "schema = 1\nextends = \"int8-v1\"\n[[override]]\ntensors = 'lm_head'\ndtype = \"float16\"\n";
        std::fs::write(bench.path("head.toml"), text).unwrap();
        bench.convert(&["--recipe", "./head.toml"]);
        let manifest = bench.manifest("out");
        let tensors = manifest["head"]["tensors"].as_array().unwrap();
        let dtypes: Vec<_> = tensors.iter().map(|tensor| tensor["dtype"].as_str().unwrap()).collect();
        assert_eq!(dtypes, ["float16", "float16"]);
        assert_eq!(manifest["blocks"][0]["tensors"][1]["dtype"], "int8");
        bench.convert(&[]);
        assert_eq!(bench.manifest("out")["head"]["tensors"][1]["dtype"], "int8");
    }
}

#[test]
fn the_manifest_names_the_rows_of_each_part_of_a_split_matrix() {
    let bench = Bench::new(&TinyModel::new("llama", 5).vocabulary(6, 16_385));
    bench.convert(&[]);
    let manifest = bench.manifest("out");
    let rows = |tensor: &Value| (tensor["name"].clone(), tensor["first_row"].clone(), tensor["shape"].clone());
    let found: Vec<_> = manifest["head"]["tensors"].as_array().unwrap().iter().map(rows).collect();
    let matrix = |first: usize, count: usize| (json!(EMBEDDING), json!(first), json!([count, 64]));
    let norm = (json!("model.norm.weight"), Value::Null, json!([64]));
    assert_eq!(found, [norm, matrix(0, 16_368), matrix(16_368, 17)]);
}

/// The table of a tiny model as the output must hold it.
fn table(model: &TinyModel) -> Vec<u8> {
    let values = model.tensors[EMBEDDING].1.iter();
    values.flat_map(|&value| f16::from_f32(bf16::from_f32(value).to_f32()).to_le_bytes()).collect()
}

#[test]
fn the_embedding_is_the_table_in_float16_whatever_the_recipe() {
    let model = TinyModel::new("qwen2", 7).vocabulary(8, 16_390).untied(9);
    let bench = Bench::new(&model);
    for arguments in [&[][..], &["--recipe", "fp16-v1"], &["--recipe", "int8-rtn-f32-v1"], &["--engine", "coremltools"]]
    {
        bench.convert(arguments);
        assert!(std::fs::read(bench.path("out/embedding.bin")).unwrap() == table(&model), "{arguments:?}");
    }
}

#[test]
fn values_that_float16_cannot_hold_are_refused_by_the_part_and_the_tensor() {
    let bench = Bench::new(&TinyModel::new("llama", 10));
    bench.convert(&[]);
    let cause = "values overflow `float16`, the largest is 70144, the limit 65504";
    let precision = "values above 65504 need `--set package.compute_precision=float32` (which never runs on the Neural \
                     Engine)";
    let flat = "packages take float16 rows, so no recipe can keep such values: bake the blocks alone with `--only`";
    for (tensor, part, hint) in [
        (EMBEDDING, "embedding", flat),
        ("lm_head.weight", "head", precision),
        ("model.norm.weight", "head", precision),
    ] {
        let mut model = TinyModel::new("llama", 10).untied(11);
        model.values(tensor)[3] = 7e4;
        model.write(&bench.path("model"));
        let output = bench.run(&["convert", "-q", "--model", "model", "--set", "package.context=128", "--out", "bad"]);
        let expected = format!(
            "anebake: error: cannot bake the {part}\n  caused by: cannot use tensor `{tensor}`\n  caused by: 1 {cause}\n  \
             hint: {hint}\n"
        );
        assert_eq!((output.status.code(), stderr(&output)), (Some(4), expected));
        assert!(!bench.path("bad").exists());
    }
}

#[test]
fn a_checkpoint_without_an_end_is_baked_in_blocks_alone() {
    let mut model = TinyModel::new("llama", 12);
    model.tensors.remove("model.norm.weight");
    let bench = Bench::new(&model);
    let output = bench.run(&["convert", "-q", "--model", "model", "--set", "package.context=128"]);
    assert_eq!(output.status.code(), Some(4));
    assert_eq!(stderr(&output), "anebake: error: `model` holds no tensor `model.norm.weight`\n");
    let output = bench.convert(&["--only", "0-1"]);
    assert!(stderr(&output).contains("without the ends of the chain: `--only` writes no `chain.json`"));
    assert!(!bench.path("out/chain.json").exists() && !bench.path("out/head.mlpackage").exists());
}

#[test]
fn variants_of_the_cache_have_keys_and_templates_of_their_own() {
    let bench = Bench::new(&TinyModel::new("qwen3", 18));
    let variants = ["slice", "mask", "io"].map(|kv| format!("package.kv={kv}"));
    let mut packages = Vec::new();
    for kv in &variants {
        // Whatever the order: nothing of another variant serves this one.
        bench.convert(&["--set", kv, "--out", kv]);
        packages.push(files(&bench.path(kv).join("block-00.mlpackage")));
    }
    for (kv, package) in variants.iter().zip(&packages) {
        bench.convert(&["--set", kv, "--out", "again", "--force"]);
        assert!(files(&bench.path("again/block-00.mlpackage")) == *package, "{kv}");
        assert_eq!(packages.iter().filter(|other| *other == package).count(), 1, "{kv}");
    }
}

#[test]
fn the_chain_says_how_the_packages_are_wired() {
    let mut model = TinyModel::new("llama", 13);
    model.config["rope_scaling"] = json!({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
        "high_freq_factor": 4.0, "original_max_position_embeddings": 64});
    let bench = Bench::new(&model);
    for (kv, query) in [("slice", 1), ("mask", 4), ("io", 2)] {
        let (set_kv, set_query) = (format!("package.kv={kv}"), format!("package.query={query}"));
        bench.convert(&["--set", "package.functions.prefill=32", "--set", &set_kv, "--set", &set_query]);
        let chain = ChainFile::read(&bench.path("out")).unwrap();
        assert_eq!((chain.model.architecture.as_str(), chain.model.layers, chain.model.vocab), ("llama", 2, 96));
        assert_eq!((chain.model.hidden, chain.model.heads, chain.model.kv_heads, chain.model.head_dim), (64, 4, 2, 16));
        let functions: Vec<_> = chain.functions.iter().map(|f| (f.name.as_str(), f.tokens, f.rows)).collect();
        assert_eq!((chain.context, functions), (128, vec![("decode", 1, query), ("prefill", 32, 32)]));
        assert_eq!((chain.mask.visible, chain.mask.hidden, chain.kv.as_str()), (0.0, -1e4, kv));
        assert_eq!(chain.rope.theta, 10_000.0);
        assert_eq!(
            chain.rope.scaling,
            json!({"type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                "original_max_positions": 64})
        );
        assert_eq!(chain.rope.table.is_some(), kv != "slice");
        assert_eq!(chain.tokenizer, None);
        assert_wired(&bench, &chain);
    }
}

/// Every name is one that the packages have, in the shape that the file says.
fn assert_wired(bench: &Bench, chain: &ChainFile) {
    let inspect = |path: &str| -> Value {
        serde_json::from_slice(&bench.run(&["inspect", "--json", &format!("out/{path}")]).stdout).unwrap()
    };
    let features = |list: &Value| -> BTreeMap<String, Value> {
        let list = list.as_array().unwrap().iter();
        list.map(|feature| (feature["name"].as_str().unwrap().to_owned(), feature["shape"].clone())).collect()
    };
    let (block, head) = (inspect(&chain.blocks[1].path), inspect(&chain.head.path));
    assert_eq!((&block["kv"], &head["kv"]), (&json!(chain.kv), &Value::Null));
    let names = &chain.interface;
    for (number, function) in chain.functions.iter().enumerate() {
        let [block, head] = [&block, &head].map(|report| &report["functions"][number]);
        assert_eq!((&block["name"], &head["name"]), (&json!(function.name), &json!(function.name)));
        let rows = function.rows;
        let stream = json!([1, rows, 64]);
        let columns = 128 + if chain.kv == KvCache::Io { rows } else { 0 };
        let mut inputs = BTreeMap::from([
            (names.hidden.clone(), stream.clone()),
            (names.mask.clone(), json!([1, 1, rows, columns])),
        ]);
        inputs.extend(names.position.iter().map(|name| (name.clone(), json!([1]))));
        let rope = names.rope.iter().flat_map(|rope| [&rope.cos, &rope.sin]);
        inputs.extend(rope.map(|name| (name.clone(), json!([1, 1, rows, 16]))));
        inputs.extend(names.write.iter().map(|name| (name.clone(), json!([1, 1, 128, rows]))));
        inputs.extend(names.past.iter().map(|past| (past.input.clone(), json!([1, 2, 128, 16]))));
        assert_eq!(features(&block["inputs"]), inputs);
        let width = if chain.kv == KvCache::Mask { 32 } else { 16 };
        let states = names.states.iter().map(|name| (name.clone(), json!([1, 2, 128, width])));
        assert_eq!(features(&block["states"]), states.collect());
        let mut outputs = BTreeMap::from([(names.output.clone(), stream.clone())]);
        outputs.extend(names.past.iter().map(|past| (past.output.clone(), json!([1, 2, rows, 16]))));
        assert_eq!(features(&block["outputs"]), outputs);
        assert_eq!(features(&head["inputs"]), BTreeMap::from([(names.hidden.clone(), stream)]));
        let parts = chain.head.outputs.iter().map(|part| (part.name.clone(), json!([1, rows, part.count])));
        assert_eq!(features(&head["outputs"]), parts.collect());
    }
}

/// What lies in a block's blob file under these names.
fn consts(package: &Path, names: &[&str]) -> Vec<u8> {
    let package = Package::open(package).unwrap();
    let uses = package.blobs().unwrap();
    let found = names.iter().map(|name| uses.iter().find(|used| used.output == *name && used.slot == "val").unwrap());
    found.flat_map(|used| used.entry.data(package.weights()).to_vec()).collect()
}

#[test]
fn the_table_of_positions_is_the_one_that_a_slice_has_inside() {
    let llama3 = json!({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64});
    let linear = json!({"rope_type": "linear", "factor": 2.5});
    for (theta, head_dim, scaling) in
        [(1e4, 16, Value::Null), (1e6, 128, Value::Null), (5e5, 64, llama3), (1e4, 80, linear)]
    {
        let mut model = TinyModel::shaped("llama", 19, [64, 2, 1, head_dim, 96]);
        model.config["rope_theta"] = theta.into();
        model.config["rope_scaling"] = scaling;
        let bench = Bench::new(&model);
        let context = ["--set", "package.context=1024"];
        let convert = |arguments: &[&str]| {
            let base = ["convert", "-q", "--no-gate", "--model", "model"];
            let output = bench.run(&[&base[..], &context, arguments].concat());
            assert!(output.status.success(), "{}", stderr(&output));
        };
        convert(&["--out", "inside"]);
        convert(&["--out", "out", "--set", "package.kv=mask"]);
        let table = std::fs::read(bench.path("out/rope.bin")).unwrap();
        assert_eq!(table.len(), 2 * 1024 * head_dim * 2);
        assert!(table == consts(&bench.path("inside/block-00.mlpackage"), &["rope_cos", "rope_sin"]), "{head_dim}");
    }
}

#[test]
fn the_table_of_positions_is_listed_repaired_and_removed_with_the_variant_that_needs_it() {
    let bench = Bench::new(&TinyModel::new("llama", 20));
    let mask = ["--set", "package.kv=mask", "--no-gate"];
    bench.convert(&mask);
    let path = bench.path("out/rope.bin");
    let whole = std::fs::read(&path).unwrap();
    let listed = BakeManifest::read(&bench.path("out")).unwrap().unwrap().files;
    let entry = listed.iter().find(|file| file.path == "rope.bin").unwrap();
    assert_eq!(entry.sha256.to_string(), anebake::cache::Digest::of(&whole).to_string());

    let run = || bench.run(&["run", "out", "--ids", "1,2,3", "--max-tokens", "1"]);
    assert!(run().status.success());
    std::fs::remove_file(&path).unwrap();
    std::fs::write(&path, &whole[..whole.len() - 2]).unwrap();
    let output = run();
    assert_eq!(output.status.code(), Some(4));
    let expected = format!("`out/rope.bin` has {} bytes, [2, 128, 16] float16 take {}", whole.len() - 2, whole.len());
    assert!(stderr(&output).contains(&expected), "{}", stderr(&output));
    bench.convert(&mask);
    assert!(std::fs::read(&path).unwrap() == whole);
    std::fs::remove_file(&path).unwrap();
    assert!(stderr(&run()).contains("cannot map `out/rope.bin`"));
    bench.convert(&mask);
    assert!(std::fs::read(&path).unwrap() == whole);
    bench.convert(&["--no-gate"]);
    assert!(!path.exists());
}

#[test]
fn a_chain_that_contradicts_itself_or_its_packages_is_refused() {
    let bench = Bench::new(&TinyModel::new("llama", 21));
    bench.convert(&["--recipe", "fp16-ane-v1", "--no-gate"]);
    let path = bench.path("out/chain.json");
    let sound: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    let refused = |change: &dyn Fn(&mut Value), says: &str| {
        let mut chain = sound.clone();
        change(&mut chain);
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, chain.to_string()).unwrap();
        let output = bench.run(&["run", "out", "--ids", "1,2,3", "--max-tokens", "1"]);
        assert_eq!(output.status.code(), Some(4), "{says}");
        assert!(stderr(&output).contains(says), "{says}: {}", stderr(&output));
    };
    let remove = |chain: &mut Value, table: &str, key: &str| {
        chain[table].as_object_mut().unwrap().remove(key);
    };
    refused(&|chain| chain["kv"] = json!("ring"), "`ring` is none of `slice`, `mask`, `io`");
    refused(&|chain| chain["kv"] = json!("io"), "the interface is not that of a chain with `kv` `io`");
    refused(&|chain| remove(chain, "interface", "write"), "the interface is not that of a chain with `kv` `mask`");
    refused(&|chain| remove(chain, "rope", "table"), "a chain with `kv` `mask` lacks its table of positions");
    refused(&|chain| chain["rope"]["table"]["shape"][2] = json!(32), "the table of positions is float16 [2, 128, 32]");
    refused(
        &|chain| chain["rope"]["table"]["path"] = json!("../rope.bin"),
        "`../rope.bin` is no path inside the folder",
    );
    refused(&|chain| chain["functions"][1]["rows"] = json!(63), "function `prefill` has 63 rows for 64 tokens");
    refused(
        &|chain| chain["functions"][0]["rows"] = json!(8),
        "input `hidden_state` of function `decode` is [1, 4, 64], not [1, 8, 64]",
    );
    refused(&|chain| chain["functions"][0]["name"] = json!("step"), "it has no function `step`");
    refused(&|chain| chain["interface"]["write"] = json!("write"), "function `decode` has no input `write`");
}

const TOKENIZER: &str = r#"{"model": {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": []}}"#;

fn write(folder: &Path, files: &[(&str, &str)]) {
    files.iter().for_each(|(name, text)| std::fs::write(folder.join(name), text).unwrap());
}

#[test]
fn a_tokenizer_is_baked_as_it_is_and_follows_its_files() {
    let bench = Bench::new(&TinyModel::new("qwen3", 14));
    let output = bench.convert(&["--no-gate"]);
    assert!(stderr(&output).contains("anebake: warning: the checkpoint has no tokenizer"), "{}", stderr(&output));
    let out = bench.path("out");
    let written = |summary: &std::process::Output| -> (u64, u64, u64) {
        let summary: Value = serde_json::from_str(&stdout(summary)).unwrap();
        let number = |key: &str| summary[key].as_u64().unwrap();
        (number("baked"), number("packages_written"), number("files_written"))
    };

    let config = r#"{"chat_template": "{{ 1 }}", "eos_token": "b"}"#;
    write(&bench.path("model"), &[("tokenizer.json", TOKENIZER), ("tokenizer_config.json", config)]);
    assert_eq!(written(&bench.convert(&["--json", "--no-gate"])), (0, 0, 3), "two files and `chain.json`");
    assert_eq!(std::fs::read_to_string(out.join("tokenizer.json")).unwrap(), TOKENIZER);
    assert_eq!(std::fs::read_to_string(out.join("tokenizer_config.json")).unwrap(), config);
    let expected = TokenizerInfo {
        path: "tokenizer.json".to_owned(),
        config: Some("tokenizer_config.json".to_owned()),
        bos: Some(1),
        eos: vec![2],
        chat_template: Some("{{ 1 }}".to_owned()),
    };
    assert_eq!(ChainFile::read(&out).unwrap().tokenizer, Some(expected.clone()));
    assert_eq!(written(&bench.convert(&["--json", "--no-gate"])), (0, 0, 0));
    let listed: Vec<String> =
        BakeManifest::read(&out).unwrap().unwrap().files.into_iter().map(|file| file.path).collect();
    assert_eq!(listed, ["chain.json", "embedding.bin", "tokenizer.json", "tokenizer_config.json"]);

    write(&bench.path("model"), &[("generation_config.json", r#"{"eos_token_id": [2, 7]}"#)]);
    bench.convert(&["--no-gate"]);
    let expected = TokenizerInfo { eos: vec![2, 7], ..expected };
    assert_eq!(ChainFile::read(&out).unwrap().tokenizer, Some(expected.clone()));
    std::fs::remove_file(bench.path("model/tokenizer_config.json")).unwrap();
    bench.convert(&["--no-gate"]);
    assert!(!out.join("tokenizer_config.json").exists());
    let expected = TokenizerInfo { config: None, chat_template: None, ..expected };
    assert_eq!(ChainFile::read(&out).unwrap().tokenizer, Some(expected));
    std::fs::remove_file(bench.path("model/tokenizer.json")).unwrap();
    bench.convert(&["--no-gate"]);
    assert!(!out.join("tokenizer.json").exists());
    assert_eq!(ChainFile::read(&out).unwrap().tokenizer, None);
}

#[test]
fn the_sample_brings_its_own_tokenizer() {
    let bench = Bench::new(&TinyModel::new("llama", 15));
    let output = bench.run(&["convert", "-q", "--no-gate", "--recipe", "fp16-v1", "--model", "sample"]);
    assert!(output.status.success(), "{}", stderr(&output));
    let chain = ChainFile::read(&bench.path("out")).unwrap();
    let tokenizer = chain.tokenizer.unwrap();
    assert_eq!((tokenizer.bos, &tokenizer.eos[..]), (Some(1), &[2, 0][..]));
    let loaded = anebake::tokenizer::Tokenizer::from_file(&bench.path("out").join(tokenizer.path)).unwrap();
    let text = "The capital of France is";
    assert_eq!(loaded.decode(&loaded.encode(text, true).unwrap()).unwrap(), text);
    assert_eq!(std::fs::metadata(bench.path("out/embedding.bin")).unwrap().len(), 49_152 * 576 * 2);
}

#[test]
fn some_parts_are_baked_alone_and_the_rest_of_a_whole_bake_stays() {
    let bench = Bench::new(&TinyModel::new("llama", 16));
    bench.convert(&[]);
    let whole = files(&bench.path("out"));
    for only in ["head", "embedding", "1,head"] {
        bench.convert(&["--only", only, "--force"]);
        let kept = files(&bench.path("out"));
        assert!(whole.keys().eq(kept.keys()));
        for (path, bytes) in whole.iter().filter(|(path, _)| *path != Path::new("manifest.json")) {
            assert!(*bytes == kept[path], "{}", path.display());
        }
    }
    bench.convert(&["--only", "head,0", "--out", "some"]);
    let mut names: Vec<String> = std::fs::read_dir(bench.path("some"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert_eq!(names, ["block-00.mlpackage", "head.mlpackage", "manifest.json"]);
    // Of another recipe nothing stays.
    bench.convert(&["--only", "head", "--recipe", "fp16-v1"]);
    let left: Vec<_> = std::fs::read_dir(bench.path("out")).unwrap().collect();
    assert_eq!(left.len(), 2, "{left:?}");
}

#[test]
fn what_the_gate_said_stays_until_the_output_is_another() {
    let mut model = TinyModel::new("llama", 17);
    let bench = Bench::new(&model);
    let out = bench.path("out");
    assert!(record_gate(&out, json!({"passed": true})).is_err(), "there is nothing yet");
    bench.convert(&[]);
    record_gate(&out, json!({"passed": true})).unwrap();
    let gate = || bench.manifest("out").get("gate").cloned();
    let stored = std::fs::read(out.join("manifest.json")).unwrap();
    bench.convert(&[]);
    assert_eq!(std::fs::read(out.join("manifest.json")).unwrap(), stored, "a hit leaves the manifest alone");
    std::fs::remove_file(out.join("embedding.bin")).unwrap();
    bench.convert(&["--force"]);
    assert_eq!(gate(), Some(json!({"passed": true})), "the same output, mended");
    bench.convert(&["--only", "0"]);
    assert_eq!(gate(), Some(json!({"passed": true})));
    assert!(bench.run(&["diff", "out", "out"]).status.success());
    model.values(EMBEDDING)[0] += 1.0;
    model.write(&bench.path("model"));
    bench.convert(&[]);
    assert_eq!(gate(), None, "other weights");
}
