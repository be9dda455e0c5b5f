//! Programs that coremltools converts with its default passes, `programs.py`.

use std::collections::BTreeSet;

use anebake::mil::Arithmetic;

use super::corpus::Corpus;
use super::run;

#[test]
fn foreign_programs_give_what_numpy_gives_in_both_arithmetics() {
    let corpus = Corpus::author("programs.py");
    let mut wrong = Vec::new();
    for case in &corpus.cases {
        for arithmetic in Arithmetic::ALL {
            if let Err(message) = run(&corpus, case, arithmetic, case.tolerance) {
                wrong.push(format!("{}: {message}", case.label));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let names: BTreeSet<&str> = corpus.cases.iter().map(|case| case.label.split("-float").next().unwrap()).collect();
    assert_eq!(names.len(), 7, "{names:?}");
}

#[test]
fn states_of_two_conversations_are_apart_and_a_new_one_begins_at_zero() {
    let corpus = Corpus::author("programs.py");
    let case = corpus.cases.iter().find(|case| case.label == "cell-float16").unwrap();
    let model = corpus.open(case, Arithmetic::Fp16).unwrap();
    let call = |step: usize, state: &mut anebake::runner::State| {
        let inputs = case.calls[step].inputs.iter().map(|(name, value)| (name.clone(), corpus.array(value))).collect();
        model.predict("main", &inputs, state).unwrap()
    };
    let mut one = model.new_state().unwrap();
    let alone: Vec<_> = (0..4).map(|step| call(step, &mut one)).collect();
    let (mut a, mut b) = (model.new_state().unwrap(), model.new_state().unwrap());
    for (step, alone) in alone.iter().enumerate() {
        assert_eq!(call(step, &mut a), *alone);
        call(3 - step, &mut b);
    }
    assert_ne!(alone[0], alone[1]);
}
