//! One list of op cases, `cases.py`, in both arithmetics.

use std::collections::BTreeSet;
use std::sync::OnceLock;

use anebake::mil::{Arithmetic, op_types};

use super::corpus::Corpus;
use super::run;

/// The cases, authored once.
pub fn corpus() -> &'static Corpus {
    static CORPUS: OnceLock<Corpus> = OnceLock::new();
    CORPUS.get_or_init(|| Corpus::author("cases.py"))
}

#[test]
fn every_op_gives_what_value_inference_or_numpy_gives_in_both_arithmetics() {
    let mut wrong = Vec::new();
    for case in &corpus().cases {
        for arithmetic in Arithmetic::ALL {
            if let Err(message) = run(corpus(), case, arithmetic, case.tolerance) {
                wrong.push(format!("{}: {message}", case.label));
            }
        }
    }
    assert!(wrong.is_empty(), "{} of {} cases:\n{}", wrong.len(), corpus().cases.len(), wrong.join("\n"));
}

#[test]
fn every_op_that_the_interpreter_has_is_among_the_cases() {
    let tried: BTreeSet<&str> = corpus().cases.iter().map(|case| case.op.as_str()).collect();
    let missing: Vec<_> = op_types().into_iter().filter(|op| !tried.contains(op)).collect();
    assert!(missing.is_empty(), "no case tries {missing:?}");
}
