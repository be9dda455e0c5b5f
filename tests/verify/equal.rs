//! Gains of one and equal tensors: coremltools removes and merges, the native bake keeps all.

use super::{LAYER, copy, lines, verify_tiny};
use crate::support::{Bench, TinyModel};
use serde_json::Value;

/// The block passes, its outputs are equal, and the exceptions are these.
fn assert_excused(block: &Value, exceptions: &[&str]) {
    assert_eq!(lines(block, "exceptions"), exceptions);
    assert_eq!(lines(block, "weight_differences"), [""; 0]);
    assert_eq!(lines(block, "output_differences"), [""; 0]);
    assert_eq!(block["outputs_compared"], 18);
    assert_eq!(block["same_weight_file"], false);
}

fn with_ones(mut model: TinyModel) -> TinyModel {
    for norm in ["input_layernorm", "post_attention_layernorm"] {
        model.values(&format!("{LAYER}.{norm}.weight")).fill(1.0);
    }
    model
}

#[test]
fn gains_of_one_stay_and_coremltools_removes_them() {
    let bench = Bench::new(&with_ones(TinyModel::new("llama", 1)));
    let removed = [
        "coremltools removed `input_layernorm_weight.val`, which is all ones",
        "coremltools removed `post_attention_layernorm_weight.val`, which is all ones",
    ];
    assert_excused(&verify_tiny(&bench, &["--recipe", "fp16-v1"]), &removed);
    assert_excused(&verify_tiny(&bench, &["--recipe", "int8-rtn-f32-v1"]), &removed);
}

#[test]
fn equal_tensors_stay_and_coremltools_merges_them() {
    let mut model = TinyModel::shaped("qwen3", 2, [128, 4, 2, 32, 96]);
    copy(&mut model, "self_attn.k_proj.weight", "self_attn.v_proj.weight", 1.0);
    copy(&mut model, "mlp.gate_proj.weight", "mlp.up_proj.weight", 1.0);
    copy(&mut model, "self_attn.q_norm.weight", "self_attn.k_norm.weight", 1.0);
    copy(&mut model, "input_layernorm.weight", "post_attention_layernorm.weight", 1.0);
    // A row that the guards treat differently must not hide that the two are equal.
    for name in ["gate", "up"] {
        model.values(&format!("{LAYER}.mlp.{name}_proj.weight"))[..128].fill(0.0);
    }
    let bench = Bench::new(&model);
    let merged = |name: &str, into: &str| format!("coremltools merged `{name}` into the equal `{into}`");
    let norms = [
        merged("post_attention_layernorm_weight.val", "input_layernorm_weight.val"),
        // Below 100 elements each keeps its name, and one entry serves both.
        "coremltools stored `q_norm_weight.val` once with the equal `k_norm_weight.val`".to_owned(),
    ];
    let expected = [
        norms[0].clone(),
        merged("up_proj_weight.val", "gate_proj_weight.val"),
        merged("v_proj_weight.val", "k_proj_weight.val"),
        norms[1].clone(),
    ];
    assert_excused(&verify_tiny(&bench, &["--recipe", "fp16-v1"]), &expected.each_ref().map(String::as_str));
    let expected = [
        "`gate_proj_weight_quantized.scale` differs only in scale group 0 (zero)".to_owned(),
        norms[0].clone(),
        merged("up_proj_weight_quantized.data", "gate_proj_weight_quantized.data"),
        merged("up_proj_weight_quantized.scale", "gate_proj_weight_quantized.scale"),
        merged("v_proj_weight_quantized.data", "k_proj_weight_quantized.data"),
        merged("v_proj_weight_quantized.scale", "k_proj_weight_quantized.scale"),
        norms[1].clone(),
    ];
    assert_excused(&verify_tiny(&bench, &["--recipe", "int8-v1"]), &expected.each_ref().map(String::as_str));
}

#[test]
fn opposite_projections_share_their_scales_in_coremltools_package() {
    let mut model = TinyModel::new("llama", 3);
    copy(&mut model, "self_attn.k_proj.weight", "self_attn.v_proj.weight", -1.0);
    let shared = "coremltools stored `v_proj_weight_quantized.scale` once with the equal \
                  `k_proj_weight_quantized.scale`";
    assert_excused(&verify_tiny(&Bench::new(&model), &[]), &[shared]);
}

/// Gate and up projection in steps of 2^-24, the smallest float16: rows 100 and later get what `late` says.
fn subnormal(late: impl Fn(f32) -> f32) -> TinyModel {
    let mut model = TinyModel::shaped("llama", 4, [64, 4, 2, 16, 128]);
    model.dtype = safetensors::Dtype::F32;
    let step = 1.0 / (1u32 << 24) as f32;
    for name in ["gate", "up"] {
        let weights = model.values(&format!("{LAYER}.mlp.{name}_proj.weight"));
        for (index, value) in weights.iter_mut().enumerate() {
            // The largest of each row gives the scale 6 * 2^-24.
            let code = if index % 64 == 0 { 762.0 } else { ((index * 37) % 700) as f32 };
            *value = step * if name == "up" && index >= 100 * 64 { late(code) } else { code };
        }
    }
    model
}

#[test]
fn nearly_equal_values_stay_and_coremltools_merges_them_wrongly() {
    let wrong = |name: &str, into: &str| {
        format!("coremltools merged `{name}` into the nearly equal `{into}`: its own result is wrong there")
    };
    let check = |late: fn(f32) -> f32, recipe: &str, exceptions: &[String]| {
        let block = verify_tiny(&Bench::new(&subnormal(late)), &["--recipe", recipe]);
        assert_eq!(lines(&block, "exceptions"), exceptions);
        assert_eq!((lines(&block, "weight_differences").len(), &block["outputs_compared"]), (0, &0.into()));
    };
    // One step more in every late row: the floats pass for equal.
    check(|code| code + 1.0, "fp16-v1", &[wrong("up_proj_weight.val", "gate_proj_weight.val")]);
    // Scales 7 * 2^-24 in late rows, 17 % more than 6 * 2^-24.
    let scales = wrong("up_proj_weight_quantized.scale", "gate_proj_weight_quantized.scale");
    check(|code| code / 762.0 * 889.0, "int8-v1", &[scales]);
}
