//! `tools/setup.py` under Pythons that cannot be used.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

use crate::support::{stderr, stdout};

/// Runs the set-up as if under the Python of a case; it finds other interpreters in `path` only.
fn setup(case: &str, path: &Path, arguments: &[&str]) -> Output {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut command = Command::new(root.join(".venv/bin/python"));
    command.arg(root.join("tests/cli/other_python.py")).arg(case).args(arguments);
    command.env("PATH", path).env("HOME", path).current_dir(path).output().unwrap()
}

const REASONS: [(&str, &str); 5] = [
    ("too_old", "Python 3.9 is not supported: coremltools 9.0 and numpy 2.3 need 3.11 to 3.13"),
    ("too_new", "Python 3.14 is not supported: coremltools 9.0 and numpy 2.3 need 3.11 to 3.13"),
    ("not_cpython", "pypy cannot be embedded; CPython can"),
    ("static", "this Python was built without a shared library (libpython), so it cannot be embedded"),
    ("no_library", "libpython-none.so is not installed, so this Python cannot be linked against"),
];

#[test]
fn a_python_that_cannot_be_embedded_is_refused_with_the_reason_and_how_to_get_another() {
    let empty = tempfile::tempdir().unwrap();
    for (case, reason) in REASONS {
        let output = setup(case, empty.path(), &[]);
        let text = stderr(&output);
        assert_eq!(output.status.code(), Some(3), "{text}");
        assert_eq!(stdout(&output), "");
        let first = text.lines().next().unwrap();
        assert!(first.starts_with("anebake: error: cannot use ") && first.ends_with(reason), "{text}");
        assert!(text.contains("  hint: install one and name it by PYTHON=: `apt-get install python3-dev"), "{text}");
        assert_eq!(setup(case, empty.path(), &["--check-only"]).status.code(), Some(3));
    }
    assert_eq!(std::fs::read_dir(empty.path()).unwrap().count(), 0);
    assert_eq!(setup("as_it_is", empty.path(), &["--check-only"]).status.code(), Some(0));
}

#[test]
fn another_python_on_the_path_that_would_do_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("python3.12");
    for (body, named) in [("exit 3", false), ("exit 0", true)] {
        std::fs::write(&path, format!("#!/bin/sh\n{body}\n")).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        let text = stderr(&setup("too_old", folder.path(), &[]));
        let hint = format!("  hint: make bake PYTHON={}\n", path.display());
        assert_eq!(text.ends_with(&hint), named, "{text}");
    }
}
