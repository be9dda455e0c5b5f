//! Ctrl-C and SIGTERM.

use std::io::{BufRead, BufReader};
use std::process::Child;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use super::{Fault, LAYERS, RECIPES};

const MESSAGE: &str = "anebake: interrupted; finished blocks are in the cache, the same command resumes\n";

/// Reads the child's stderr until `stop` says so, interrupts the child `delay` later, and returns its status and all it
/// said.
fn interrupt(mut child: Child, stop: impl Fn(&str) -> bool, delay: Duration, signal: Signal) -> (Option<i32>, String) {
    let mut reader = BufReader::new(child.stderr.take().unwrap());
    let mut text = String::new();
    while reader.read_line(&mut text).unwrap() > 0 && !stop(&text) {}
    std::thread::sleep(delay);
    // One that has ended is still there to be waited for.
    kill_process(Pid::from_child(&child), signal).unwrap();
    std::io::Read::read_to_string(&mut reader, &mut text).unwrap();
    (child.wait().unwrap().code(), text)
}

fn assert_interrupted(fault: &Fault, code: Option<i32>, text: &str) -> bool {
    fault.assert_nothing_wrong("out");
    match code {
        Some(130) => {
            assert!(text.ends_with(MESSAGE) && !text.contains("anebake: error"), "{text}");
            fault.assert_tidy("out");
            true
        }
        Some(0) => false,
        _ => panic!("{code:?}: {text}"),
    }
}

#[test]
fn an_interrupted_bake_says_so_leaves_nothing_temporary_and_the_same_command_resumes() {
    let mut fault = Fault::new();
    let templates = fault.templates();
    let mut interrupted = 0;
    for round in 0..60 {
        fault.cache_from(&templates);
        let signal = [Signal::INT, Signal::TERM][round % 2];
        let delay = fault.moment(Duration::from_millis(100));
        let child = fault.command(RECIPES[round % 2], &["--jobs", "1"]).spawn().unwrap();
        let (code, text) = interrupt(child, |text| text.contains("block-01"), delay, signal);
        if !assert_interrupted(&fault, code, &text) {
            continue;
        }
        interrupted += 1;
        let finished = text.matches("  baked  ").count();
        let output = fault.command(RECIPES[round % 2], &["--json"]).output().unwrap();
        let summary: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert!(finished >= 1 && summary["cached"].as_u64().unwrap() >= finished as u64, "{text}{summary}");
        assert_eq!(summary["blocks"], LAYERS);
        fault.assert_complete(round % 2, "out");
        if interrupted == 16 {
            break;
        }
    }
    assert!(interrupted >= 8, "{interrupted}");
}

#[test]
fn python_at_work_does_not_keep_the_program_from_ending() {
    let mut fault = Fault::new();
    for round in 0..6 {
        fault.forget_cache();
        let delay = fault.moment(Duration::from_millis(1500));
        let signal = [Signal::INT, Signal::TERM][round % 2];
        let child = fault.command(RECIPES[0], &[]).spawn().unwrap();
        let (code, text) = interrupt(child, |text| text.contains("template"), delay, signal);
        assert_interrupted(&fault, code, &text);
    }
}
