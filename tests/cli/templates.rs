//! Models of equal shape and other maths: each gets a graph of its own, and a right one.

use half::f16;
use serde_json::{Value, json};

use crate::support::{Bench, TinyModel, files, stdout};

const PACKAGE: &str = "block-01.mlpackage";
const HEAD_DIM: usize = 16;
const CONTEXT: usize = 128;

/// Bakes into `out` and says whether Python was started.
fn bake(bench: &Bench, model: &TinyModel, out: &str) -> bool {
    model.write(&bench.path("model"));
    let summary: Value = serde_json::from_str(&stdout(&bench.convert(&["--json", "--out", out]))).unwrap();
    summary["python_started"].as_bool().unwrap()
}

fn file(bench: &Bench, out: &str, name: &str) -> Vec<u8> {
    let all = files(&bench.path(out).join(PACKAGE));
    all.into_iter().find(|(path, _)| path.ends_with(name)).unwrap().1
}

/// The values of a table of the package, found by what `inspect` says.
fn table(bench: &Bench, out: &str, name: &str) -> Vec<f16> {
    let package = format!("{out}/{PACKAGE}");
    let report: Value = serde_json::from_str(&stdout(&bench.run(&["inspect", "--json", &package]))).unwrap();
    let weight = report["weights"].as_array().unwrap().iter().find(|weight| weight["name"] == name).unwrap();
    assert_eq!((&weight["dtype"], &weight["shape"]), (&json!("fp16"), &json!([CONTEXT, HEAD_DIM])));
    let start = weight["offset"].as_u64().unwrap() as usize + 64;
    let bytes = &file(bench, out, "weight.bin")[start..start + 2 * CONTEXT * HEAD_DIM];
    bytes.as_chunks::<2>().0.iter().map(|pair| f16::from_le_bytes(*pair)).collect()
}

/// RoPE's tables by their definition, in f64.
fn assert_tables(bench: &Bench, out: &str, frequency: impl Fn(usize) -> f64) {
    for (name, of) in [("rope_cos", f64::cos as fn(f64) -> f64), ("rope_sin", f64::sin)] {
        let values = table(bench, out, name);
        for position in 0..CONTEXT {
            for dim in 0..HEAD_DIM {
                let expected = of(position as f64 * frequency(dim % (HEAD_DIM / 2))).abs();
                let found = f64::from(values[position * HEAD_DIM + dim].to_f32()).abs();
                assert!((found - expected).abs() < 1e-3, "{out} {name} [{position}, {dim}]: {found} {expected}");
            }
        }
    }
}

#[test]
fn eps_rope_base_and_rope_scaling_each_lead_to_a_template_of_their_own() {
    let bench = Bench::new(&TinyModel::new("llama", 1));
    let base = TinyModel::new("llama", 1);
    let with = |key: &str, value: Value| {
        let mut model = base.clone();
        model.config[key] = value;
        model
    };
    let plain = |theta: f64| move |index: usize| theta.powf(-2.0 * index as f64 / HEAD_DIM as f64);
    let scaling = json!({"rope_type": "linear", "factor": 4.0});
    for (out, model) in [
        ("base", base.clone()),
        ("eps", with("rms_norm_eps", json!(1e-3))),
        ("theta", with("rope_theta", json!(500_000.0))),
        ("scaled", with("rope_scaling", scaling)),
    ] {
        assert!(bake(&bench, &model, out), "`{out}` needs a template of its own");
        assert!(!bake(&bench, &model, out), "`{out}` has it now");
    }
    assert_tables(&bench, "base", plain(1e4));
    assert_tables(&bench, "eps", plain(1e4));
    assert_tables(&bench, "theta", plain(5e5));
    assert_tables(&bench, "scaled", |index| plain(1e4)(index) / 4.0);

    let programs = ["base", "eps", "theta", "scaled"].map(|out| file(&bench, out, "model.mlmodel"));
    let weights = ["base", "eps", "theta", "scaled"].map(|out| file(&bench, out, "weight.bin"));
    assert_ne!(programs[0], programs[1], "eps lies in the program");
    assert_eq!(weights[0], weights[1]);
    for other in 2..4 {
        assert_ne!(weights[0], weights[other], "the tables lie in the blob file");
    }
    let before = files(&bench.path("base"));
    assert!(!bake(&bench, &base, "base"));
    assert_eq!(before, files(&bench.path("base")));
}
