//! Python environments that cannot be used.

use std::path::{Path, PathBuf};

use super::refused;
use crate::support::{Bench, TinyModel, stdout};

const SETUP: &str = "run `make setup`, or name an interpreter that has it in `ANEBAKE_PYTHON`";

fn linked() -> String {
    anebake::coremltools::Environment::find(None).unwrap().tool_versions().unwrap().python
}

/// A folder that looks like an environment of the linked Python with these packages.
fn fake(bench: &Bench, name: &str, packages: &[&str]) -> PathBuf {
    let root = bench.path(name);
    let version = linked();
    let minor = version.rsplit_once('.').unwrap().0;
    let site = root.join(format!("lib/python{minor}/site-packages"));
    for package in packages {
        std::fs::create_dir_all(site.join(format!("{package}.dist-info"))).unwrap();
    }
    std::fs::create_dir_all(&site).unwrap();
    std::fs::create_dir_all(root.join("bin")).unwrap();
    std::fs::write(root.join("bin/python"), "").unwrap();
    std::fs::write(root.join("pyvenv.cfg"), format!("home = /nowhere\nversion = {version}\n")).unwrap();
    root
}

fn convert(bench: &Bench, python: &Path) -> std::process::Output {
    bench.command().args(["convert", "--model", "model"]).env("ANEBAKE_PYTHON", python).output().unwrap()
}

#[test]
fn an_interpreter_that_is_not_there() {
    let bench = Bench::new(&TinyModel::new("llama", 1));
    let nowhere = bench.path("nowhere/python");
    let expected = format!("anebake: error: no Python interpreter at `{}`\n  hint: {SETUP}", nowhere.display());
    refused(&convert(&bench, &nowhere), 3, &expected);
    let folder = bench.path("model");
    let expected =
        format!("anebake: error: no Python interpreter at `{}/bin/python`\n  hint: {SETUP}", folder.display());
    refused(&convert(&bench, &folder), 3, &expected);
}

#[test]
fn an_environment_without_coremltools_or_with_a_numpy_that_breaks_it() {
    let bench = Bench::new(&TinyModel::new("llama", 1));
    let without = fake(&bench, "without", &["numpy-2.3.5"]);
    let python = without.join("bin/python");
    let expected = format!("`coremltools` is not installed for `{}`\n  hint: {SETUP}", python.display());
    refused(&convert(&bench, &without), 3, &format!("anebake: error: {expected}"));

    let newer = fake(&bench, "newer", &["coremltools-9.0", "numpy-2.4.0", "protobuf-7.36.2"]);
    let python = newer.join("bin/python");
    let expected = format!(
        "anebake: error: numpy for `{0}` is 2.4.0, but coremltools 9.0 needs one below 2.4\n  hint: run `{0} -m pip \
         install 'numpy<2.4'`",
        python.display()
    );
    refused(&convert(&bench, &newer), 3, &expected);
}

#[test]
fn packages_that_are_listed_but_do_not_import_are_an_environment_fault_with_pythons_own_words() {
    let bench = Bench::new(&TinyModel::new("llama", 1));
    let hollow = fake(&bench, "hollow", &["coremltools-9.0", "numpy-2.3.5", "protobuf-7.36.2"]);
    let real = Path::new(env!("CARGO_MANIFEST_DIR")).join(".venv/pyvenv.cfg");
    std::fs::copy(real, hollow.join("pyvenv.cfg")).unwrap();
    // Nothing is said of what goes well meanwhile.
    let python = hollow.join("bin/python");
    let output = bench.command().env("ANEBAKE_PYTHON", &python).args(["convert", "-q", "--model", "model"]).output();
    let output = output.unwrap();
    let expected = format!(
        "anebake: error: the packages of `{}` cannot be used
  caused by: Python failed while importing coremltools
  caused by: ModuleNotFoundError: No module named 'coremltools'
  hint: {SETUP}",
        python.display()
    );
    refused(&output, 3, &expected);
    assert!(!bench.path("out").exists());
}

#[test]
fn the_doctor_names_what_is_missing_and_how_to_mend_it() {
    let bench = Bench::new(&TinyModel::new("llama", 1));
    let fine = bench.run(&["doctor"]);
    assert!(fine.status.success(), "{}", stdout(&fine));
    let without = fake(&bench, "without", &[]);
    let output = bench.command().arg("doctor").env("ANEBAKE_PYTHON", &without).output().unwrap();
    assert_eq!(output.status.code(), Some(3));
    let text = stdout(&output);
    let python = without.join("bin/python");
    let line = format!("FAIL  packages      `coremltools` is not installed for `{}`\n", python.display());
    assert!(text.contains(&line), "{text}");
    assert!(text.contains(&format!("fix: {SETUP}")), "{text}");
}
