//! Bakes side by side.

use std::process::Child;

use super::{Fault, LAYERS, RECIPES, packages};
use crate::support::{stderr, stdout};

fn join(child: Child) -> serde_json::Value {
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    serde_json::from_str(&stdout(&output)).unwrap()
}

#[test]
fn two_bakes_of_the_same_thing_at_once_both_succeed_and_are_right() {
    let fault = Fault::new();
    let templates = fault.templates();
    for round in 0..10 {
        if round == 0 {
            fault.forget_cache();
        } else {
            fault.cache_from(&templates);
        }
        let outs = [["same", "same"], ["left", "right"]][round % 2];
        for out in outs {
            drop(std::fs::remove_dir_all(fault.bench.path(out)));
        }
        let children = outs.map(|out| fault.command(RECIPES[0], &["--json", "--out", out]).spawn().unwrap());
        for summary in children.map(join) {
            assert_eq!(
                summary["baked"].as_u64().unwrap() + summary["cached"].as_u64().unwrap(),
                LAYERS as u64 + 2,
                "{summary}"
            );
        }
        for out in outs {
            fault.assert_complete(0, out);
        }
    }
}

#[test]
fn two_recipes_at_once_into_one_folder_leave_one_of_them_whole() {
    let fault = Fault::new();
    let templates = fault.templates();
    for _ in 0..6 {
        fault.cache_from(&templates);
        let children = RECIPES.map(|recipe| fault.command(recipe, &["--json"]).spawn().unwrap());
        children.into_iter().for_each(|child| drop(join(child)));
        fault.assert_nothing_wrong("out");
        let found = packages(&fault.bench.path("out"));
        let winner = fault.expected.iter().position(|expected| *expected == found).expect("one bake, not a mix");
        fault.assert_complete(winner, "out");
    }
}
