//! Folders without permission, for users whom permissions bind.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use super::{Fault, RECIPES};
use crate::support::stderr;

fn set_mode(folder: &Path, mode: u32) {
    let entries = walkdir::WalkDir::new(folder).into_iter().map(|entry| entry.unwrap());
    let folders: Vec<_> = entries.filter(|entry| entry.file_type().is_dir()).collect();
    for entry in folders {
        std::fs::set_permissions(entry.path(), Permissions::from_mode(mode)).unwrap();
    }
}

#[test]
#[ignore = "needs a user other than root"]
fn an_output_without_permission_is_refused_and_a_cache_without_permission_still_serves() {
    let fault = Fault::new();
    let bake = |recipe: usize, arguments: &[&str]| {
        fault.command(RECIPES[recipe], &[&["-q"], arguments].concat()).output().unwrap()
    };
    assert!(bake(0, &[]).status.success());
    set_mode(&fault.bench.path("out"), 0o555);
    let output = bake(1, &[]);
    assert_eq!(output.status.code(), Some(4), "{}", stderr(&output));
    let text = stderr(&output);
    assert!(text.contains("(output folder `out`)") && text.contains("Permission denied"), "{text}");
    assert!(text.contains("  hint: free space or choose another folder with `--out`"), "{text}");
    fault.assert_complete(0, "out");
    set_mode(&fault.bench.path("out"), 0o755);

    set_mode(&fault.bench.path("cache"), 0o555);
    let (hit, miss) = (bake(0, &["--out", "another"]), bake(1, &["--force", "--out", "more"]));
    set_mode(&fault.bench.path("cache"), 0o755);
    assert!(hit.status.success(), "{}", stderr(&hit));
    fault.assert_complete(0, "another");
    assert_eq!(miss.status.code(), Some(4));
    assert!(stderr(&miss).contains("is not writable"), "{}", stderr(&miss));
}
