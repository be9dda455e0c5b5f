//! The template against coremltools' own road, and what either refuses.

use super::{Template, feed, python, request, rows, weight_bin};
use anebake::coremltools::{PACKAGE, SourceArray, traceback};
use anebake::error::{Status, hints, status};
use anebake::quant::SourceDtype;
use serde_json::{Value, json};

const PROJECTIONS: [&str; 7] = [
    "self_attn.q_proj.weight",
    "self_attn.k_proj.weight",
    "self_attn.v_proj.weight",
    "self_attn.o_proj.weight",
    "mlp.gate_proj.weight",
    "mlp.up_proj.weight",
    "mlp.down_proj.weight",
];

fn quantized(mut request: Value, dtype: &str, granularity: &str, block_size: Option<u32>) -> Value {
    for role in PROJECTIONS {
        request["weights"][role] = json!({"dtype": dtype, "granularity": granularity, "block_size": block_size});
    }
    request
}

/// Checkpoint shape of a tensor of `request`.
fn shape(request: &Value, role: &str) -> Vec<usize> {
    let number = |key: &str| usize::try_from(request[key].as_u64().unwrap()).unwrap();
    let (hidden, inner, head_dim) = (number("hidden"), number("intermediate"), number("head_dim"));
    let (q, kv) = (number("heads") * head_dim, number("kv_heads") * head_dim);
    match role.rsplit('.').nth(1).unwrap() {
        "q_proj" if role.ends_with("bias") => vec![q],
        "k_proj" | "v_proj" if role.ends_with("bias") => vec![kv],
        "q_proj" => vec![q, hidden],
        "k_proj" | "v_proj" => vec![kv, hidden],
        "o_proj" => vec![hidden, q],
        "gate_proj" | "up_proj" => vec![inner, hidden],
        "down_proj" => vec![hidden, inner],
        "q_norm" | "k_norm" => vec![head_dim],
        _ => vec![hidden],
    }
}

/// Bakes the template's probe values by coremltools' own road; both packages must hold the same weight.bin and give
/// the same bits over prefill and decode.
fn compare(request: &Value) {
    let template = Template::of(request);
    let dtype = if request["compute_precision"] == "float32" { SourceDtype::F32 } else { SourceDtype::F16 };
    let probes: Vec<_> = template.reply.tensors.iter().map(|t| (t.role.clone(), template.probe(&t.role))).collect();
    let tensors: Vec<_> = probes
        .iter()
        .map(|(role, bytes)| (role.clone(), SourceArray { dtype, shape: shape(request, role), bytes }))
        .collect();
    let folder = tempfile::tempdir().unwrap();
    python().convert(request, &tensors, folder.path()).unwrap();
    let witness = folder.path().join(PACKAGE);
    assert!(weight_bin(&template.package()) == weight_bin(&witness), "{request}: weight.bin differs");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "temporary files are left");

    let hidden = usize::try_from(request["hidden"].as_u64().unwrap()).unwrap();
    let context = usize::try_from(request["context"].as_u64().unwrap()).unwrap();
    let stream = rows(7 * hidden, 11);
    let run = |package| {
        let oracle = python().oracle(package).unwrap();
        let mut state = oracle.new_state("decode").unwrap();
        let mut outputs = vec![feed(&oracle, "prefill", &stream[..4 * hidden], context, 0, &mut state, hidden)];
        for position in 4..7 {
            let row = &stream[position * hidden..][..hidden];
            outputs.push(feed(&oracle, "decode", row, context, position, &mut state, hidden));
        }
        outputs.extend(["k_cache", "v_cache"].map(|name| state.get(name).unwrap()));
        outputs
    };
    let (own, theirs) = (run(&template.package()), run(&witness));
    assert!(own.iter().flat_map(super::Array::to_f32).all(f32::is_finite));
    assert!(own == theirs, "{request}: outputs differ");
}

#[test]
fn int8_per_channel_has_the_bytes_and_outputs_of_coremltools_own_road() {
    let mut request = quantized(request("qwen3"), "int8", "per_channel", None);
    request["hidden"] = 256.into();
    request["head_dim"] = 64.into();
    request["intermediate"] = 512.into();
    compare(&request);
}

#[test]
#[ignore = "needs 10 s and 400 MB"]
fn a_block_of_qwen3_0_6b_has_the_bytes_and_outputs_of_coremltools_own_road() {
    let mut request = quantized(request("qwen3"), "int8", "per_channel", None);
    for (key, value) in [("hidden", 1024), ("heads", 16), ("kv_heads", 8), ("head_dim", 128), ("intermediate", 3072)] {
        request[key] = value.into();
    }
    compare(&request);
}

#[test]
fn float32_compute_has_the_bytes_and_outputs_of_coremltools_own_road() {
    let mut request = quantized(request("qwen2"), "int8", "per_channel", None);
    request["compute_precision"] = "float32".into();
    compare(&request);
}

#[test]
fn mixed_schemes_have_the_bytes_and_outputs_of_coremltools_own_road() {
    let mut request = quantized(request("llama"), "int4", "per_block", Some(32));
    request["weights"].as_object_mut().unwrap().remove("mlp.down_proj.weight");
    request["weights"]["self_attn.o_proj.weight"] =
        json!({"dtype": "int8", "granularity": "per_channel", "block_size": null});
    request["norm"] = "layer_norm_pair".into();
    compare(&request);
}

#[test]
fn unquantized_weights_have_the_bytes_and_outputs_of_coremltools_own_road() {
    compare(&request("qwen3"));
}

#[test]
fn a_template_says_what_it_holds() {
    let mut request = quantized(request("qwen2"), "int8", "per_block", Some(32));
    request["weights"].as_object_mut().unwrap().remove("mlp.down_proj.weight");
    let reply = Template::of(&request).reply;
    assert_eq!(reply.statics, ["rope_cos", "rope_sin"]);
    let bias = reply.tensors.iter().find(|t| t.role == "self_attn.q_proj.bias").unwrap();
    assert_eq!((bias.r#const.as_str(), &bias.scheme), ("q_proj_bias", &None));
    let up = reply.tensors.iter().find(|t| t.role == "mlp.up_proj.weight").unwrap();
    assert_eq!((up.r#const.as_str(), up.scheme.as_ref().unwrap().block_size), ("up_proj_weight", Some(32)));
    assert_eq!(reply.tensors.iter().filter(|t| t.scheme.is_some()).count(), 6);
    assert_eq!(reply.tensors.len(), 12);
}

#[test]
fn a_template_refuses_what_would_lie_in_the_spec() {
    let refused = |request: &Value| {
        let error = python().template(request, tempfile::tempdir().unwrap().path()).unwrap_err();
        assert_eq!(status(&error), Status::Usage);
        assert!(hints(&error).next().unwrap().contains("--engine coremltools"));
        error.to_string()
    };
    assert_eq!(
        refused(&quantized(request("llama"), "int8", "per_tensor", None)),
        "tensor `self_attn.q_proj.weight` has 1 scales (per_tensor); below 10 coremltools keeps them in model.mlmodel"
    );
    let mut small = request("qwen3");
    small["head_dim"] = 8.into();
    assert_eq!(
        refused(&small),
        "tensor `self_attn.q_norm.weight` has 8 elements; below 10 coremltools keeps it in model.mlmodel"
    );
    assert_eq!(
        refused(&quantized(request("llama"), "int8", "per_block", Some(48))),
        "tensor `self_attn.q_proj.weight`: dim 1 is 64, not a multiple of block size 48"
    );
}

#[test]
fn a_python_exception_keeps_its_type_message_and_traceback() {
    let folder = tempfile::tempdir().unwrap();
    let error = python().convert(&request("llama"), &[], folder.path()).unwrap_err();
    assert_eq!(status(&error), Status::Environment);
    let chain: Vec<_> = error.chain().map(ToString::to_string).collect();
    assert_eq!(
        chain[1..],
        [
            "Python failed while baking a package with coremltools",
            "ValueError: tensor `input_layernorm.weight` is missing"
        ]
    );
    let traceback = traceback(&error).unwrap();
    assert!(traceback.contains("<embedded>/anebake.bake"), "{traceback}");
    assert!(traceback.contains("raise ValueError("), "source lines are shown: {traceback}");
}
