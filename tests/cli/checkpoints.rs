//! Checkpoints that cannot be baked: each is refused by file, tensor or key.

use std::path::Path;

use serde_json::{Value, json};

use super::{convert, refused};
use crate::support::{Bench, TinyModel, stderr};

fn bench() -> Bench {
    Bench::new(&TinyModel::new("llama", 1))
}

fn with_config(key: &str, value: Value) -> Bench {
    let mut model = TinyModel::new("llama", 1);
    match value {
        Value::Null => model.config.as_object_mut().unwrap().remove(key),
        value => model.config.as_object_mut().unwrap().insert(key.into(), value),
    };
    Bench::new(&model)
}

/// Makes shards of the model's only file: an index that says that `tensors` lie in `shard`.
fn index(bench: &Bench, tensors: &[&str], shard: &str) {
    let model = bench.path("model");
    std::fs::rename(model.join("model.safetensors"), model.join("model-00001-of-00002.safetensors")).unwrap();
    let mut map: serde_json::Map<String, Value> = TinyModel::new("llama", 1)
        .tensors
        .keys()
        .map(|name| (name.clone(), json!("model-00001-of-00002.safetensors")))
        .collect();
    map.extend(tensors.iter().map(|name| ((*name).to_owned(), json!(shard))));
    let index = json!({ "metadata": {}, "weight_map": map });
    std::fs::write(model.join("model.safetensors.index.json"), index.to_string()).unwrap();
}

#[test]
fn an_index_that_names_a_missing_file() {
    let bench = bench();
    index(&bench, &["model.norm.weight"], "model-00002-of-00002.safetensors");
    refused(
        &convert(&bench, &[]),
        4,
        "anebake: error: cannot use `model/model.safetensors.index.json`
  caused by: tensor `model.norm.weight` is said to lie in `model-00002-of-00002.safetensors`, which is missing
  hint: download `model-00002-of-00002.safetensors` into `model`",
    );
}

#[test]
fn an_index_that_names_a_tensor_which_its_file_lacks() {
    let bench = bench();
    index(&bench, &["model.layers.7.ghost.weight"], "model-00001-of-00002.safetensors");
    refused(
        &convert(&bench, &[]),
        4,
        "anebake: error: cannot use `model/model.safetensors.index.json`
  caused by: tensor `model.layers.7.ghost.weight` is said to lie in `model-00001-of-00002.safetensors`, which does not \
         hold it",
    );
}

#[test]
fn a_tensor_that_is_missing_or_misshapen_or_has_no_place() {
    let mut model = TinyModel::new("llama", 1);
    model.tensors.remove("model.layers.0.self_attn.v_proj.weight");
    model.tensors.insert("model.layers.0.mlp.up_proj.weight".into(), (vec![64, 96], vec![0.5; 64 * 96]));
    model.tensors.insert("model.layers.1.self_attn.q_proj.bias".into(), (vec![128], vec![0.5; 128]));
    refused(
        &convert(&Bench::new(&model), &[]),
        4,
        "anebake: error: `model` is not what its config says: `model` holds no tensor \
         `model.layers.0.self_attn.v_proj.weight`; tensor `model.layers.0.mlp.up_proj.weight` in \
         `model/model.safetensors` has shape [64, 96]; the model's config asks for [96, 64]; tensor \
         `model.layers.1.self_attn.q_proj.bias` has no place in `llama` with 2 blocks",
    );
}

#[test]
fn an_unsupported_architecture_names_those_that_are_supported() {
    refused(
        &convert(&with_config("model_type", json!("gpt2")), &[]),
        4,
        "anebake: error: cannot use `model/config.json`
  caused by: architecture `gpt2` is not supported; supported are `qwen3`, `llama`, `qwen2`",
    );
}

#[test]
fn a_config_key_that_is_missing_or_asks_for_what_blocks_do_not_do() {
    for (key, value, cause) in [
        ("rope_theta", Value::Null, "`rope_theta` is missing, here and under `rope_parameters`"),
        ("rms_norm_eps", Value::Null, "`rms_norm_eps` is missing"),
        ("hidden_size", json!("64"), "`hidden_size` is \"64\"; it must be a whole number, 0 or more"),
        (
            "rope_scaling",
            json!({"rope_type": "yarn", "factor": 2.0}),
            "RoPE scaling `yarn` is not supported; supported are `default`, `linear`, `llama3`",
        ),
    ] {
        let expected = format!("anebake: error: cannot use `model/config.json`\n  caused by: {cause}");
        refused(&convert(&with_config(key, value), &[]), 4, &expected);
    }
}

#[test]
fn values_that_are_no_numbers_or_that_fp16_cannot_hold_are_counted_and_the_tensor_named() {
    let bench = bench();
    bench.convert(&[]);
    let damaged = "the checkpoint is damaged: fetch or save it again";
    let large = "values above 65504 need `--set package.compute_precision=float32` (which never runs on the Neural \
                 Engine)";
    let (up, norm) = ("model.layers.1.mlp.up_proj.weight", "model.layers.1.input_layernorm.weight");
    for (tensor, values, cause, hint) in [
        (up, &[f32::NAN, f32::NAN, f32::INFINITY][..], "2 values are NaN and 1 infinite", damaged),
        (up, &[f32::NEG_INFINITY], "0 values are NaN and 1 infinite", damaged),
        (norm, &[f32::NAN], "1 values are NaN and 0 infinite", damaged),
        (up, &[7e4, -7e4], "2 values overflow `float16`, the largest is 70144, the limit 65504", large),
        (norm, &[-7e4], "1 values overflow `float16`, the largest is 70144, the limit 65504", large),
    ] {
        let mut model = TinyModel::new("llama", 1);
        for (at, value) in values.iter().enumerate() {
            model.values(tensor)[7 * at + 3] = *value;
        }
        model.write(&bench.path("model"));
        let output = convert(&bench, &["-q", "--out", "bad"]);
        let expected = format!(
            "anebake: error: cannot bake block 1\n  caused by: cannot use tensor `{tensor}`\n  caused by: {cause}\n  \
             hint: {hint}"
        );
        refused(&output, 4, &expected);
        assert!(!bench.path("bad").exists());
    }
}

#[test]
fn safetensors_that_are_cut_short_or_of_a_dtype_that_is_not_read() {
    let bench = bench();
    let file = bench.path("model/model.safetensors");
    let whole = std::fs::read(&file).unwrap();
    std::fs::write(&file, &whole[..whole.len() - 1]).unwrap();
    let data = whole.len() - 8 - u64::from_le_bytes(whole[..8].try_into().unwrap()) as usize;
    let cut = format!(
        "anebake: error: cannot read `model/model.safetensors`
  caused by: tensor `model.norm.weight` ends at byte {data} of the data, but there are {}: the file is cut short
  hint: download the file again",
        data - 1
    );
    refused(&convert(&bench, &[]), 4, &cut);
    std::fs::write(&file, &whole[..100]).unwrap();
    let output = convert(&bench, &[]);
    assert!(stderr(&output).contains("bytes, but only 92 follow"), "{}", stderr(&output));
    assert_eq!(output.status.code(), Some(4));

    let text = String::from_utf8_lossy(&whole).replace("\"dtype\":\"BF16\"", "\"dtype\":\"I16\" ");
    assert_ne!(text.len(), 0);
    let mut other = whole.clone();
    let header = 8..whole.len() - data;
    let changed = String::from_utf8(whole[header.clone()].to_vec()).unwrap().replace(":\"BF16\"", ":\"I16\" ");
    other[header].copy_from_slice(changed.as_bytes());
    std::fs::write(&file, other).unwrap();
    let output = convert(&bench, &[]);
    let needle = "tensor `model.layers.0.self_attn.q_proj.weight` in `model/model.safetensors` is I16, which is not \
                  read; supported are F32, F16, BF16, and in GGUF the quantized types of ggml";
    assert!(stderr(&output).contains(needle), "{}", stderr(&output));
    assert_eq!(output.status.code(), Some(4));
}

#[test]
fn a_gguf_that_is_cut_short_or_no_gguf() {
    let bench = bench();
    std::fs::write(bench.path("bad.gguf"), "not a model").unwrap();
    refused(
        &bench.run(&["convert", "--model", "bad.gguf"]),
        4,
        "anebake: error: cannot read `bad.gguf`\n  caused by: not a GGUF file: it starts with `not `",
    );
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/gguf");
    let golden = std::fs::read_dir(golden).unwrap().map(|entry| entry.unwrap().path());
    let golden = golden.filter(|path| path.extension().is_some_and(|extension| extension == "gguf")).min().unwrap();
    let whole = std::fs::read(golden).unwrap();
    for length in [20, whole.len() / 3, whole.len() - 64] {
        std::fs::write(bench.path("bad.gguf"), &whole[..length]).unwrap();
        let output = bench.run(&["convert", "--model", "bad.gguf"]);
        let text = stderr(&output);
        assert_eq!(output.status.code(), Some(4), "{text}");
        assert!(text.starts_with("anebake: error: cannot read `bad.gguf`\n  caused by: "), "{text}");
        assert!(text.contains("cut short") && text.ends_with("  hint: download the file again\n"), "{text}");
    }
    std::fs::copy(bench.path("model/model.safetensors"), bench.path("mislabelled.gguf")).unwrap();
    let output = bench.run(&["convert", "--model", "mislabelled.gguf"]);
    assert_eq!(output.status.code(), Some(4));
    assert!(stderr(&output).contains("not a GGUF file"), "{}", stderr(&output));
}

#[test]
fn paths_that_are_no_model() {
    let bench = bench();
    std::fs::create_dir(bench.path("empty")).unwrap();
    for (model, message) in [
        ("nowhere", "model `nowhere` does not exist"),
        ("nowhere.gguf", "model `nowhere.gguf` does not exist"),
        ("Qwen/Qwen3-0.6B", "model `Qwen/Qwen3-0.6B` does not exist\n  hint: write `hf:Qwen/Qwen3-0.6B`"),
        (
            "empty",
            "`empty` holds no `config.json`\n  hint: give a Hugging Face folder with `config.json` and \
             `model.safetensors`, or a `.gguf` file",
        ),
        (
            "model/model.safetensors",
            "model `model/model.safetensors` is neither a folder nor a `.gguf` file\n  hint: name the folder that \
             holds `config.json` and the safetensors",
        ),
    ] {
        refused(&bench.run(&["convert", "--model", model]), 4, &format!("anebake: error: {message}"));
    }
    let output = bench.run(&["convert", "--model", "hf:qwen"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).starts_with("anebake: error: `qwen` is no repository of the hub"), "{}", stderr(&output));
}

#[test]
fn a_hub_that_cannot_be_reached_leads_to_the_sample() {
    let bench = bench();
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let endpoint = format!("http://{closed}");
    let mut command = bench.command();
    let output = command.arg("convert").env("HF_ENDPOINT", &endpoint).env("HF_HOME", bench.path("hub")).output();
    let (output, text) = (output.as_ref().unwrap(), stderr(output.as_ref().unwrap()));
    assert_eq!(output.status.code(), Some(4));
    let expected = format!(
        "anebake: error: cannot look up `Qwen/Qwen3-0.6B` at `main`\n  caused by: the hub at {endpoint} cannot be \
         reached\n"
    );
    assert!(text.starts_with(&expected), "{text}");
    assert!(text.ends_with("  hint: use `--model sample`, or a folder: `--model PATH`\n"), "{text}");
}
