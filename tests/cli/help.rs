//! What every command says about itself.

use crate::support::{Bench, TinyModel, stdout};

fn help(command: &str) {
    let bench = Bench::new(&TinyModel::new("llama", 1));
    let mut program = bench.command();
    program.env_remove("ANEBAKE_CACHE_DIR").env_remove("ANEBAKE_PYTHON").env("COLUMNS", "100");
    let output = program.args(command.split_whitespace()).arg("--help").output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty());
    let name = format!("help_{}", if command.is_empty() { "anebake".to_owned() } else { command.replace(' ', "_") });
    insta::with_settings!({ prepend_module_to_snapshot => false, omit_expression => true }, {
        insta::assert_snapshot!(name, stdout(&output));
    });
}

#[test]
fn the_program_and_every_command_explain_themselves() {
    for command in [
        "",
        "convert",
        "plan",
        "explain",
        "inspect",
        "diff",
        "verify",
        "gate",
        "lint",
        "smoke",
        "probe",
        "run",
        "doctor",
        "recipe",
        "recipe list",
        "recipe show",
        "recipe check",
        "cache",
        "cache stats",
        "cache verify",
        "cache gc",
        "cache path",
        "completions",
    ] {
        help(command);
    }
}

#[test]
fn completions_are_generated_for_every_shell_and_know_the_commands() {
    let bench = Bench::new(&TinyModel::new("llama", 1));
    for (shell, mark) in
        [("bash", "complete -F _anebake"), ("zsh", "#compdef anebake"), ("fish", "complete -c anebake")]
    {
        let output = bench.run(&["completions", shell]);
        assert!(output.status.success() && output.stderr.is_empty());
        let script = stdout(&output);
        assert!(script.contains(mark), "{shell}");
        for word in ["convert", "explain", "completions", "frozen", "cache-dir"] {
            assert!(script.contains(word), "{shell}: {word}");
        }
    }
}
