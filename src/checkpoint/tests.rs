use std::fs;
use std::path::{Path, PathBuf};

use ::safetensors::SafeTensors;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::*;
use crate::arch::RopeScaling;
use crate::error::{Status, hints, status};

const HIDDEN: usize = 8;
const LAYERS: usize = 2;

fn llama_config() -> Value {
    json!({
        "model_type": "llama", "hidden_act": "silu", "hidden_size": HIDDEN, "intermediate_size": 12,
        "max_position_embeddings": 64, "num_attention_heads": 2, "num_hidden_layers": LAYERS,
        "num_key_value_heads": 1, "rms_norm_eps": 1e-5, "rope_theta": 1e4, "vocab_size": 16
    })
}

/// A tensor as it goes into a file.
#[derive(Clone)]
struct Tensor {
    name: String,
    dtype: &'static str,
    shape: Vec<usize>,
    bytes: Vec<u8>,
}

impl Tensor {
    /// Bytes that differ from tensor to tensor.
    fn new(name: &str, dtype: &'static str, shape: &[usize]) -> Self {
        let width = match dtype {
            "F32" | "I32" => 4,
            "F16" | "BF16" => 2,
            _ => 1,
        };
        let seed = name.bytes().fold(7_u8, |seed, byte| seed.wrapping_mul(31).wrapping_add(byte));
        let length = shape.iter().product::<usize>() * width;
        let bytes = (0..length).map(|i| seed.wrapping_add((i % 251) as u8)).collect();
        Self { name: name.to_owned(), dtype, shape: shape.to_vec(), bytes }
    }
}

/// A whole tiny `llama`, untied.
fn llama_tensors() -> Vec<Tensor> {
    let config = ModelConfig::from_hugging_face(&llama_config(), true).unwrap();
    let mut tensors = vec![
        Tensor::new("model.embed_tokens.weight", "BF16", &[16, HIDDEN]),
        Tensor::new("model.norm.weight", "F32", &[HIDDEN]),
        Tensor::new("lm_head.weight", "BF16", &[16, HIDDEN]),
    ];
    for block in 0..LAYERS {
        for tensor in config.block_tensors() {
            let dtype = if tensor.role.contains("norm") { "F32" } else { ["F16", "BF16"][block] };
            tensors.push(Tensor::new(&format!("model.layers.{block}.{}", tensor.role), dtype, &tensor.shape));
        }
    }
    tensors
}

/// A safetensors file, its header spelled out by hand.
fn safetensors_bytes(tensors: &[Tensor]) -> Vec<u8> {
    let mut header = vec![r#""__metadata__":{"format":"pt"}"#.to_owned()];
    let mut data = Vec::new();
    for Tensor { name, dtype, shape, bytes } in tensors {
        let start = data.len();
        data.extend_from_slice(bytes);
        let end = data.len();
        header.push(format!(r#""{name}":{{"dtype":"{dtype}","shape":{shape:?},"data_offsets":[{start},{end}]}}"#));
    }
    with_header(&format!("{{{}}}", header.join(",")), &data)
}

fn with_header(header: &str, data: &[u8]) -> Vec<u8> {
    [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), data].concat()
}

fn folder(config: &Value, files: &[(&str, Vec<u8>)]) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
    for (name, bytes) in files {
        fs::write(folder.path().join(name), bytes).unwrap();
    }
    folder
}

fn single(tensors: &[Tensor]) -> TempDir {
    folder(&llama_config(), &[("model.safetensors", safetensors_bytes(tensors))])
}

/// The whole chain of an error, after checking that it is an input fault.
fn message(error: &anyhow::Error) -> String {
    assert_eq!(status(error), Status::Input, "{error:#}");
    format!("{error:#}")
}

fn open_error(path: &Path) -> String {
    message(&Checkpoint::open(path).unwrap_err())
}

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/gguf").join(name)
}

fn as_f32(values: Values<'_>) -> Vec<f32> {
    match values.dtype {
        SourceDtype::F32 => values.bytes.as_chunks::<4>().0.iter().map(|v| f32::from_le_bytes(*v)).collect(),
        SourceDtype::F16 => {
            values.bytes.as_chunks::<2>().0.iter().map(|v| half::f16::from_le_bytes(*v).to_f32()).collect()
        }
        SourceDtype::Bf16 => {
            values.bytes.as_chunks::<2>().0.iter().map(|v| half::bf16::from_le_bytes(*v).to_f32()).collect()
        }
    }
}

#[test]
fn a_folder_gives_every_tensor_as_it_was_written() {
    let tensors = llama_tensors();
    let folder = single(&tensors);
    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    checkpoint.check().unwrap();
    assert!(!checkpoint.config().tied_embeddings);
    assert_eq!(checkpoint.files()[0].path, folder.path().join("model.safetensors"));
    let mut buffer = Vec::new();
    for tensor in &tensors {
        let found = checkpoint.tensor(&tensor.name).unwrap();
        assert_eq!((&found.name, &found.shape, &*found.stored), (&tensor.name, &tensor.shape, tensor.dtype));
        assert_eq!(checkpoint.stored_bytes(&found), tensor.bytes);
        assert_eq!(checkpoint.read(&found, &mut buffer).unwrap().bytes, tensor.bytes);
        checkpoint.release(&found, 0..found.length);
        assert_eq!(checkpoint.stored_bytes(&found), tensor.bytes);
    }
    assert!(buffer.is_empty());
}

#[test]
fn shards_give_the_same_as_one_file() {
    let tensors = llama_tensors();
    let (first, second) = tensors.split_at(9);
    let map: Value = first
        .iter()
        .map(|tensor| (tensor.name.clone(), json!("model-00001-of-00002.safetensors")))
        .chain(second.iter().map(|tensor| (tensor.name.clone(), json!("model-00002-of-00002.safetensors"))))
        .collect();
    let index = json!({"metadata": {"total_size": 1}, "weight_map": map});
    let files = [
        ("model-00001-of-00002.safetensors", safetensors_bytes(first)),
        ("model-00002-of-00002.safetensors", safetensors_bytes(second)),
        ("model.safetensors.index.json", index.to_string().into_bytes()),
    ];
    let whole = folder(&llama_config(), &files);
    let checkpoint = Checkpoint::open(whole.path()).unwrap();
    checkpoint.check().unwrap();
    assert_eq!(checkpoint.files().len(), 2);
    for tensor in &tensors {
        let found = checkpoint.tensor(&tensor.name).unwrap();
        assert_eq!(checkpoint.stored_bytes(&found), tensor.bytes);
    }

    fs::remove_file(whole.path().join("model-00002-of-00002.safetensors")).unwrap();
    let error = open_error(whole.path());
    assert!(error.contains("is said to lie in `model-00002-of-00002.safetensors`, which is missing"), "{error}");

    let mut short = files.clone();
    short[1].1 = safetensors_bytes(&second[1..]);
    let error = open_error(folder(&llama_config(), &short).path());
    let lost = &second[0].name;
    assert!(
        error.contains(&format!("tensor `{lost}` is said to lie in `model-00002-of-00002.safetensors`")),
        "{error}"
    );
    assert!(error.ends_with("which does not hold it"), "{error}");

    let mut twice = files.clone();
    twice[1].1 = safetensors_bytes(&tensors[8..]);
    let error = open_error(folder(&llama_config(), &twice).path());
    assert!(error.contains(&format!("tensor `{}` is both in", tensors[8].name)), "{error}");

    let mut outside = files;
    outside[2].1 = json!({"weight_map": {"lm_head.weight": "../model.safetensors"}}).to_string().into_bytes();
    let error = open_error(folder(&llama_config(), &outside).path());
    assert!(error.contains("`../model.safetensors`, which is not a file name"), "{error}");
}

#[test]
fn a_model_saved_without_its_head_is_found_without_the_prefix() {
    let mut tensors = llama_tensors();
    tensors.retain(|tensor| tensor.name != "lm_head.weight");
    for tensor in &mut tensors {
        tensor.name = tensor.name.trim_start_matches("model.").to_owned();
    }
    let folder = single(&tensors);
    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    checkpoint.check().unwrap();
    assert!(checkpoint.config().tied_embeddings);
    assert_eq!(checkpoint.tensor("model.norm.weight").unwrap().name, "norm.weight");
}

#[test]
fn check_lists_what_is_missing_misshapen_or_unknown() {
    let mut tensors = llama_tensors();
    tensors.retain(|tensor| tensor.name != "model.layers.0.mlp.up_proj.weight");
    let shape = tensors.iter().position(|t| t.name == "model.layers.1.self_attn.k_proj.weight").unwrap();
    tensors[shape] = Tensor::new("model.layers.1.self_attn.k_proj.weight", "F16", &[HIDDEN, 4]);
    let dtype = tensors.iter().position(|t| t.name == "model.layers.1.mlp.down_proj.weight").unwrap();
    tensors[dtype] = Tensor::new("model.layers.1.mlp.down_proj.weight", "F8_E4M3", &[HIDDEN, 12]);
    tensors.push(Tensor::new("model.layers.0.self_attn.q_proj.bias", "F16", &[HIDDEN]));
    tensors.push(Tensor::new("model.layers.2.input_layernorm.weight", "F32", &[HIDDEN]));
    tensors.push(Tensor::new("model.layers.0.self_attn.rotary_emb.inv_freq", "F32", &[2]));
    let folder = single(&tensors);
    let error = message(&Checkpoint::open(folder.path()).unwrap().check().unwrap_err());
    let path = folder.path().display();
    let file = folder.path().join("model.safetensors");
    let file = file.display();
    let expected = format!(
        "`{path}` is not what its config says: \
         `{path}` holds no tensor `model.layers.0.mlp.up_proj.weight`; \
         tensor `model.layers.1.self_attn.k_proj.weight` in `{file}` has shape [8, 4]; the model's config asks for \
         [4, 8]; \
         tensor `model.layers.1.mlp.down_proj.weight` in `{file}` is F8_E4M3, which is not read; supported are F32, \
         F16, BF16, and in GGUF the quantized types of ggml; \
         tensor `model.layers.0.self_attn.q_proj.bias` has no place in `llama` with 2 blocks; \
         tensor `model.layers.2.input_layernorm.weight` has no place in `llama` with 2 blocks"
    );
    assert_eq!(error, expected);
}

#[test]
fn damaged_safetensors_headers_are_refused() {
    let entry = |name: &str, shape: &str, start: usize, end: usize| {
        format!(r#""{name}":{{"dtype":"F16","shape":{shape},"data_offsets":[{start},{end}]}}"#)
    };
    let [a, b] = [entry("a", "[2]", 0, 4), entry("b", "[2]", 4, 8)];
    let header = |entries: &[&str]| format!("{{{}}}", entries.join(","));
    let whole = with_header(&header(&[&a, &b]), &[0; 8]);
    let cases = [
        (whole[..5].to_vec(), "5 bytes are too few for a header"),
        (whole[..30].to_vec(), "bytes, but only 22 follow"),
        (u64::MAX.to_le_bytes().to_vec(), "a header of 18446744073709551615 bytes is beyond the limit"),
        (whole[..whole.len() - 1].to_vec(), "tensor `b` ends at byte 8 of the data, but there are 7"),
        (with_header("[]", &[]), "invalid header"),
        (with_header("{\"a\":", &[]), "invalid header"),
        (with_header(r#"{"a":{"dtype":"F16"}}"#, &[]), "tensor `a`: missing field `shape`"),
        (with_header(&header(&[&a, &a]), &[0; 4]), "tensor `a` is there twice"),
        (with_header(&header(&[&a, &entry("b", "[2]", 2, 6)]), &[0; 6]), "tensor `b` overlaps tensor `a`"),
        (
            with_header(&header(&[&a, &entry("b", "[2]", 6, 10)]), &[0; 10]),
            "2 bytes between tensor `a` and tensor `b` belong to no tensor",
        ),
        (with_header(&header(&[&a]), &[0; 5]), "the 1 bytes after tensor `a` belong to no tensor"),
        (with_header(&header(&[&entry("a", "[2]", 4, 0)]), &[0; 4]), "tensor `a` has the offsets 4 to 0"),
        (
            with_header(&header(&[&entry("a", "[3]", 0, 4)]), &[0; 4]),
            "tensor `a` has 4 bytes, but F16 of shape [3] needs 6",
        ),
        (
            with_header(&header(&[&entry("a", "[18446744073709551615,18446744073709551615,9]", 0, 4)]), &[0; 4]),
            "tensor `a` has 4 bytes, but F16 of shape",
        ),
    ];
    for (bytes, expected) in cases {
        let folder = folder(&llama_config(), &[("model.safetensors", bytes)]);
        let error = open_error(folder.path());
        assert!(error.contains(expected), "{error}\nlacks: {expected}");
        assert!(error.contains("model.safetensors"), "{error}");
    }
}

#[test]
fn what_a_failed_download_leaves_behind_is_recognised() {
    let pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n".to_vec();
    let cases = [
        (pointer, "is a Git LFS pointer", "lfs pull"),
        (b"\n<!DOCTYPE html><html>".to_vec(), "is a web page", "download the file itself"),
        (Vec::new(), "is empty", "download the file again"),
    ];
    for (bytes, expected, hint) in cases {
        for name in ["model.safetensors", "config.json"] {
            let folder = folder(&llama_config(), &[("model.safetensors", vec![1]), (name, bytes.clone())]);
            let error = Checkpoint::open(folder.path()).unwrap_err();
            assert!(message(&error).contains(&format!("{name}` {expected}")), "{error:#}");
            assert!(hints(&error).any(|text| text.contains(hint)));
        }
    }
}

#[test]
fn a_path_that_is_no_checkpoint_gets_a_hint() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let hint = |path: &Path| {
        let error = Checkpoint::open(path).unwrap_err();
        (message(&error), hints(&error).collect::<Vec<_>>().join("; "))
    };
    assert!(hint(&path.join("none")).0.ends_with("none` does not exist"));
    assert!(hint(path).0.ends_with("holds no `config.json`"));
    fs::write(path.join("config.json"), "{}").unwrap();
    assert!(hint(path).0.ends_with("holds no `model.safetensors`"));
    fs::write(path.join("pytorch_model.bin"), "x").unwrap();
    assert!(hint(path).1.contains("save_pretrained"));
    fs::write(path.join("model-00001-of-00002.safetensors"), "x").unwrap();
    assert!(hint(path).1.contains("`model.safetensors.index.json`"));
    fs::write(path.join("adapter_config.json"), "{}").unwrap();
    assert!(hint(path).1.contains("adapter"));
    fs::write(path.join("m.gguf"), "x").unwrap();
    assert_eq!(hint(path).1, format!("--model {}", path.join("m.gguf").display()));
    fs::write(path.join("model.safetensors"), "x").unwrap();
    assert!(hint(path).0.contains("model.safetensors`: 1 bytes are too few"));
    fs::write(path.join("config.json"), "{").unwrap();
    assert!(hint(path).0.contains("config.json`: invalid JSON"));
    assert!(hint(&path.join("model.safetensors")).1.contains(&format!("{}", path.display())));
}

#[test]
fn a_change_of_a_file_while_it_is_open_is_noticed() {
    let change = |change: &dyn Fn(&Path)| {
        let folder = single(&llama_tensors());
        let checkpoint = Checkpoint::open(folder.path()).unwrap();
        checkpoint.unchanged().unwrap();
        change(&folder.path().join("model.safetensors"));
        message(&checkpoint.unchanged().unwrap_err())
    };
    let truncated = change(&|path| fs::OpenOptions::new().write(true).open(path).unwrap().set_len(10).unwrap());
    assert!(truncated.contains("changed while it was being read: size"), "{truncated}");
    let replaced = change(&|path| {
        fs::copy(path, path.with_extension("new")).unwrap();
        fs::rename(path.with_extension("new"), path).unwrap();
    });
    assert!(replaced.contains("changed while it was being read"), "{replaced}");
    let removed = change(&|path| fs::remove_file(path).unwrap());
    assert!(removed.contains("changed while it was being read: No such file"), "{removed}");
}

#[test]
fn every_quantized_type_of_ggml_is_dequantized_as_the_gguf_package_does() {
    let checkpoint = Checkpoint::open(&golden("types.gguf")).unwrap();
    let expected = fs::read(golden("types.safetensors")).unwrap();
    let expected = SafeTensors::deserialize(&expected).unwrap();
    assert_eq!(expected.len(), 27);
    let mut buffer = vec![0xAA; 7];
    for (name, values) in expected.tensors() {
        let found = checkpoint.tensor(&name).unwrap();
        assert_eq!((&found.stored, &found.shape[..]), (&format!("ggml:{name}"), values.shape()));
        let read = checkpoint.read(&found, &mut buffer).unwrap();
        assert_eq!(read.dtype, SourceDtype::F32);
        let differing = read.bytes.chunks(4).zip(values.data().chunks(4)).filter(|(a, b)| a != b).count();
        assert_eq!((read.bytes.len(), differing), (values.data().len(), 0), "{name}");
    }
}

#[test]
fn a_gguf_of_llama_gives_the_rows_in_the_order_of_hugging_face() {
    let checkpoint = Checkpoint::open(&golden("llama.gguf")).unwrap();
    checkpoint.check().unwrap();
    let config = checkpoint.config();
    assert_eq!((config.heads, config.kv_heads, config.head_dim, config.vocab), (4, 2, 8, 8));
    assert_eq!((config.rms_norm_eps, config.rope_theta, config.tied_embeddings), (1e-5, 1e5, true));
    assert_eq!(config.rope_scaling, RopeScaling::Divisors { divisors: vec![1.0, 1.0, 1.5, 8.0] });
    let expected = fs::read(golden("llama.safetensors")).unwrap();
    let expected = SafeTensors::deserialize(&expected).unwrap();
    assert_eq!(expected.len(), 2 + config.block_tensors().len());
    let mut buffer = Vec::new();
    for (name, values) in expected.tensors() {
        let found = checkpoint.tensor(&name).unwrap();
        assert_eq!(found.shape, values.shape(), "{name}");
        let read = as_f32(checkpoint.read(&found, &mut buffer).unwrap());
        let values = as_f32(Values { dtype: SourceDtype::F32, bytes: values.data() });
        assert_eq!(read, values, "{name}");
    }
}

#[test]
fn a_damaged_gguf_is_an_error_and_never_a_panic() {
    let whole = fs::read(golden("llama.gguf")).unwrap();
    // The last tensor has 16 bytes, and 16 bytes of padding follow it.
    for length in 0..whole.len() - 16 {
        message(&gguf::describe(&whole[..length]).unwrap_err());
    }
    // The front matter with each of its bytes changed: either refused, or opened and then read without a panic.
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.gguf");
    let mut buffer = Vec::new();
    let (mut refused, mut opened) = (0, 0);
    for position in 0..1600 {
        for flip in [0x01, 0x80, 0xFF] {
            let mut bytes = whole.clone();
            bytes[position] ^= flip;
            if let Err(error) = gguf::describe(&bytes) {
                message(&error);
                refused += 1;
                continue;
            }
            opened += 1;
            fs::write(&path, &bytes).unwrap();
            let checkpoint = Checkpoint::open(&path).unwrap();
            for tensor in checkpoint.config().block_tensors() {
                let found = checkpoint.tensor(&format!("model.layers.0.{}", tensor.role));
                let read = found.and_then(|found| checkpoint.read(&found, &mut buffer).map(drop));
                read.unwrap_or_else(|error| drop(message(&error)));
            }
        }
    }
    assert!(refused > 0 && opened > 0, "{refused} refused, {opened} opened");
}

/// A GGUF file by hand: metadata as `(key, type, value bytes)`, tensors as `(name, dims, type, offset)`.
fn gguf_bytes(
    version: u32,
    metadata: &[(&str, u32, Vec<u8>)],
    tensors: &[(&str, &[u64], u32, u64)],
    data: &[u8],
) -> Vec<u8> {
    let string = |text: &str| [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat();
    let mut bytes = b"GGUF".to_vec();
    bytes.extend(version.to_le_bytes());
    bytes.extend((tensors.len() as u64).to_le_bytes());
    bytes.extend((metadata.len() as u64).to_le_bytes());
    for (key, kind, value) in metadata {
        bytes.extend(string(key));
        bytes.extend(kind.to_le_bytes());
        bytes.extend(value);
    }
    for (name, dims, kind, offset) in tensors {
        bytes.extend(string(name));
        bytes.extend((dims.len() as u32).to_le_bytes());
        for dim in *dims {
            bytes.extend(dim.to_le_bytes());
        }
        bytes.extend(kind.to_le_bytes());
        bytes.extend(offset.to_le_bytes());
    }
    bytes.resize(bytes.len().next_multiple_of(32), 0);
    bytes.extend(data);
    bytes
}

/// What `llama` needs to be described.
fn llama_metadata() -> Vec<(&'static str, u32, Vec<u8>)> {
    let text = [&5_u64.to_le_bytes()[..], b"llama"].concat();
    let mut metadata = vec![
        ("general.architecture", 8, text),
        ("llama.attention.layer_norm_rms_epsilon", 6, 1e-5_f32.to_le_bytes().to_vec()),
        ("llama.rope.freq_base", 6, 1e4_f32.to_le_bytes().to_vec()),
    ];
    for (key, value) in [
        ("llama.block_count", 1_u32),
        ("llama.context_length", 64),
        ("llama.embedding_length", 32),
        ("llama.feed_forward_length", 32),
        ("llama.attention.head_count", 2),
        ("llama.vocab_size", 16),
    ] {
        metadata.push((key, 4, value.to_le_bytes().to_vec()));
    }
    metadata
}

#[test]
fn gguf_files_that_cannot_be_read_are_refused_with_the_reason() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.gguf");
    let error = |bytes: Vec<u8>| {
        fs::write(&path, bytes).unwrap();
        Checkpoint::open(&path).and_then(|checkpoint| checkpoint.tensor("t").map(drop)).err().map(|e| message(&e))
    };
    let metadata = llama_metadata();
    let of_tensors =
        |tensors: &[(&str, &[u64], u32, u64)]| error(gguf_bytes(3, &metadata, tensors, &[0; 128])).unwrap();
    let with = |key, kind, value: Vec<u8>| {
        error(gguf_bytes(3, &[metadata.clone(), vec![(key, kind, value)]].concat(), &[], &[]))
    };

    assert!(error(b"GGML----".to_vec()).unwrap().contains("not a GGUF file: it starts with `GGML`"));
    assert!(error(gguf_bytes(1, &[], &[], &[])).unwrap().contains("GGUF version 1 is not read"));
    assert!(error(gguf_bytes(4, &[], &[], &[])).unwrap().contains("GGUF version 4 is not read"));
    assert!(error(gguf_bytes(3_u32.swap_bytes(), &[], &[], &[])).unwrap().contains("big-endian"));
    assert!(error(gguf_bytes(2, &metadata, &[("t", &[2], 0, 0)], &[0; 8])).is_none());

    assert!(of_tensors(&[("t", &[2], 24, 0)]).contains("tensor `t` in"));
    assert!(of_tensors(&[("t", &[2], 24, 0)]).contains("is ggml:I8, which is not read"));
    assert!(of_tensors(&[("t", &[2], 99, 0)]).contains("tensor `t`: ggml type 99 is not known"));
    assert!(of_tensors(&[("t", &[2; 5], 0, 0)]).contains("tensor `t`: 5 dimensions"));
    assert!(
        of_tensors(&[("t", &[33], 2, 0)]).contains("tensor `t`: rows of 33 are not a multiple of Q4_0's block size 32")
    );
    assert!(of_tensors(&[("t", &[u64::MAX, 3], 0, 0)]).contains("is too large"));
    assert!(of_tensors(&[("t", &[2], 0, 4)]).contains("tensor `t` lies at 4, not a multiple of 32"));
    assert!(of_tensors(&[("t", &[2], 0, 128)]).contains("tensor `t` ends at byte"));
    assert!(of_tensors(&[("t", &[2], 0, u64::MAX - 31)]).contains("beyond any file"));
    assert!(of_tensors(&[("t", &[2], 0, 0), ("t", &[2], 0, 32)]).contains("tensor `t` is there twice"));
    assert!(of_tensors(&[("s", &[16], 0, 0), ("t", &[2], 0, 32)]).contains("tensor `t` overlaps tensor `s`"));
    let scaled: &[(&str, &[u64], u32, u64)] =
        &[("blk.0.attn_v.weight", &[64], 40, 0), ("blk.0.attn_v.scale", &[1], 0, 64)];
    fs::write(&path, gguf_bytes(3, &metadata, scaled, &[0; 128])).unwrap();
    let scaled = Checkpoint::open(&path).unwrap().tensor("model.layers.0.self_attn.v_proj.weight").unwrap_err();
    assert!(message(&scaled).contains("is scaled by another tensor, `blk.0.attn_v.scale`"));

    assert!(with("split.count", 2, 3_u16.to_le_bytes().to_vec()).unwrap().contains("split over 3 files"));
    assert!(with("general.alignment", 4, 3_u32.to_le_bytes().to_vec()).unwrap().contains("`general.alignment`"));
    assert!(
        with("llama.block_count", 4, vec![1, 0, 0, 0]).unwrap().contains("metadata `llama.block_count` is there twice")
    );
    assert!(with("x", 77, Vec::new()).unwrap().contains("metadata `x`: value type 77 is not known"));
    let nested = [&9_u32.to_le_bytes()[..], &1_u64.to_le_bytes()].concat();
    assert!(with("x", 9, nested).unwrap().contains("metadata `x`: arrays of value type 9 are not read"));
    let endless = [&8_u32.to_le_bytes()[..], &u64::MAX.to_le_bytes()].concat();
    assert!(with("x", 9, endless).unwrap().contains("it is cut short or damaged"));
}
