//! `kill -9` at random moments.

use std::time::{Duration, Instant};

use super::{Fault, RECIPES};

/// Kills a bake of `recipe` after at most `longest`; says whether it was still alive.
fn kill(fault: &mut Fault, recipe: usize, longest: Duration) -> bool {
    let delay = fault.moment(longest);
    let mut child = fault.command(RECIPES[recipe], &["-q"]).spawn().unwrap();
    std::thread::sleep(delay);
    child.kill().unwrap();
    child.wait().unwrap().code().is_none()
}

fn complete(fault: &Fault, recipe: usize) {
    let output = fault.command(RECIPES[recipe], &["-q"]).output().unwrap();
    assert!(output.status.success(), "{}", crate::support::stderr(&output));
    fault.assert_complete(recipe, "out");
}

#[test]
fn bakes_killed_at_any_moment_leave_whole_packages_and_the_next_one_completes() {
    let mut fault = Fault::new();
    let templates = fault.templates();
    fault.cache_from(&templates);
    let start = Instant::now();
    complete(&fault, 0);
    let longest = start.elapsed().mul_f64(1.2);

    let (mut kills, mut without_manifest) = (0, 0);
    for round in 0.. {
        assert!(round < 400, "only {kills} of {round} bakes were still alive when they were killed");
        if kills >= 50 {
            break;
        }
        let recipe = round % 2;
        if round % 3 == 0 {
            fault.cache_from(&templates);
        }
        kills += usize::from(kill(&mut fault, recipe, longest));
        fault.assert_nothing_wrong("out");
        without_manifest += usize::from(!fault.bench.path("out/manifest.json").exists());
        if round % 3 == 2 {
            complete(&fault, recipe);
        }
    }
    assert!(without_manifest > 0, "some were killed while they published");
    for recipe in [0, 1] {
        complete(&fault, recipe);
    }
}

#[test]
fn bakes_killed_while_the_template_is_made_leave_whole_packages_and_the_next_one_completes() {
    let mut fault = Fault::new();
    for round in 0..6 {
        if round % 2 == 0 {
            fault.forget_cache();
        }
        kill(&mut fault, round % 2, Duration::from_secs(2));
        fault.assert_nothing_wrong("out");
    }
    complete(&fault, 1);
}
