//! How near results come to what float16 holds.

use serde_json::json;

use super::{random, report};
use crate::support::{Bench, TinyModel, stderr, stdout};

#[test]
fn every_op_is_listed_by_its_largest_magnitude() {
    let bench = random();
    let arguments = ["--ids", "5,17,90,3,42", "--max-tokens", "3", "--headroom", "--headroom-top", "100000"];
    let headroom = report(&bench, &arguments).headroom.unwrap();
    assert_eq!(headroom.first_overflow, None);
    let largest: Vec<f32> = headroom.ops.iter().map(|op| op.largest.unwrap()).collect();
    assert!(largest.is_sorted_by(|a, b| a >= b) && largest[0] < 65504.0 && largest.len() > 100);
    for (package, function) in
        [("block-00.mlpackage", "prefill"), ("block-01.mlpackage", "decode"), ("head.mlpackage", "decode")]
    {
        assert!(headroom.ops.iter().any(|op| op.package == package && op.function == function), "{package} {function}");
    }
    let first = &headroom.ops[0];
    let output = bench.run(&["run", "out", "--ids", "5,17,90,3,42", "-n", "3", "--headroom", "--headroom-top", "4"]);
    let shown = stderr(&output);
    let lines: Vec<&str> = shown.lines().collect();
    assert_eq!(lines.len(), 6, "{shown}");
    assert_eq!(lines[0].split_whitespace().next(), Some("LARGEST"));
    assert!([&first.package, &first.op, &first.output].iter().all(|part| lines[1].contains(part.as_str())), "{shown}");
    assert_eq!(lines[5], "no result overflows float16");
    assert_eq!(stdout(&output).matches(',').count(), 2);
}

#[test]
fn the_first_op_that_overflows_is_named_with_the_tokens_position_even_where_no_token_can_be_chosen() {
    // Token 7's residual stream is at the edge of float16 already; what the block adds pushes it over.
    let mut model = TinyModel::new("qwen3", 11);
    let row = &mut model.values("model.embed_tokens.weight")[7 * 64..8 * 64];
    for (column, value) in row.iter_mut().enumerate() {
        *value = if column % 2 == 0 { 65280.0 } else { -65280.0 };
    }
    model.values("model.layers.0.mlp.down_proj.weight").iter_mut().for_each(|value| *value *= 300.0);
    let bench = Bench::new(&model);
    bench.convert(&["--recipe", "fp16-v1"]);

    let output = bench.run(&["run", "out", "--ids", "3,4,7,5", "--headroom", "--headroom-top", "1"]);
    let shown = stderr(&output);
    assert_eq!(output.status.code(), Some(4), "{shown}");
    let lines: Vec<&str> = shown.lines().collect();
    assert!(lines[2].starts_with("first overflow: add `"), "{shown}");
    assert!(lines[2].ends_with("` in `prefill` of block-00.mlpackage, token at position 2"), "{shown}");
    assert!(lines[3].starts_with("anebake: error: no token can be chosen at position 4"), "{shown}");
    assert!(shown.contains("  hint: `--headroom` shows where float16 overflows; `--arithmetic f32` runs"), "{shown}");

    // In f32 nothing breaks, and the op is named all the same.
    let whole = report(&bench, &["--ids", "3,4,7,5", "-n", "1", "--headroom", "--arithmetic", "f32"]);
    assert_eq!((whole.ids.len(), &*whole.stats.arithmetic), (1, "f32"));
    let overflow = whole.headroom.unwrap().first_overflow.unwrap();
    assert_eq!((&overflow["package"], &overflow["op"]), (&json!("block-00.mlpackage"), &json!("add")));
    assert!(overflow["largest"].as_f64().unwrap() > 65520.0, "{overflow}");
}
