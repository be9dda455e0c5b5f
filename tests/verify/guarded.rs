//! Rows whose scale coremltools gets wrong in silence.

use super::{LAYER, lines, verify_tiny};
use crate::support::{Bench, TinyModel};

fn scale_row(model: &mut TinyModel, tensor: &str, row: usize, factor: f32) {
    let name = format!("{LAYER}.{tensor}.weight");
    let columns = model.tensors[&name].0[1];
    model.values(&name)[row * columns..][..columns].iter_mut().for_each(|value| *value *= factor);
}

#[test]
fn zero_tiny_and_huge_rows_are_named_and_pass() {
    let mut model = TinyModel::new("qwen3", 1);
    scale_row(&mut model, "self_attn.q_proj", 3, 0.0);
    scale_row(&mut model, "mlp.gate_proj", 7, 1e-6);
    let bench = Bench::new(&model);
    let block = verify_tiny(&bench, &[]);
    let mut expected = vec![
        "`gate_proj_weight_quantized.data` differs only in scale group 7 (underflow)",
        "`gate_proj_weight_quantized.scale` differs only in scale group 7 (underflow)",
        "`q_proj_weight_quantized.scale` differs only in scale group 3 (zero)",
    ];
    assert_eq!(lines(&block, "exceptions"), expected);
    assert_eq!(lines(&block, "weight_differences"), [""; 0]);
    // What coremltools stores there is worth 0 too.
    assert_eq!((lines(&block, "output_differences").len(), &block["outputs_compared"]), (0, &18.into()));

    // Small weights keep what the huge row makes in check.
    scale_row(&mut model, "mlp.up_proj", 11, 1e5);
    model.write(&bench.path("model"));
    let block = verify_tiny(&bench, &[]);
    expected.extend([
        "`up_proj_weight_quantized.data` differs only in scale group 11 (large)",
        "`up_proj_weight_quantized.scale` differs only in scale group 11 (large)",
    ]);
    assert_eq!(lines(&block, "exceptions"), expected);
    // coremltools' scale is infinite and its outputs are NaN.
    assert_eq!((lines(&block, "weight_differences").len(), &block["outputs_compared"]), (0, &0.into()));

    let guarded = |name: &str, out: &str| {
        let manifest = bench.manifest(out);
        let tensors = manifest["blocks"][0]["tensors"].as_array().unwrap();
        let tensor = tensors.iter().find(|tensor| tensor["name"] == format!("{LAYER}.{name}.weight")).unwrap();
        tensor["guarded"].clone()
    };
    bench.convert(&["--only", "0"]);
    let listed = ["self_attn.q_proj", "mlp.gate_proj", "mlp.up_proj"].map(|name| guarded(name, "out"));
    assert_eq!(
        serde_json::json!(listed),
        serde_json::json!([
            [{"index": 3, "reason": "zero"}], [{"index": 7, "reason": "underflow"}], [{"index": 11, "reason": "large"}],
        ])
    );
}

#[test]
fn guarded_groups_of_per_block_weights_are_named_by_their_scale() {
    let mut model = TinyModel::new("llama", 2);
    // Row 5, second block of 32.
    model.values(&format!("{LAYER}.self_attn.o_proj.weight"))[5 * 64 + 32..6 * 64].fill(0.0);
    let bench = Bench::new(&model);
    for dtype in ["int8", "int4"] {
        let block = verify_tiny(&bench, &["--recipe", "int8-block32-v1", "--set", &format!("weights.dtype={dtype}")]);
        assert_eq!(
            lines(&block, "exceptions"),
            ["`o_proj_weight_quantized.scale` differs only in scale group 11 (zero)"]
        );
        assert_eq!((lines(&block, "output_differences").len(), &block["outputs_compared"]), (0, &18.into()));
    }
}
