//! Full and read-only disks: small file systems of their own.

use std::path::Path;
use std::process::{Command, Output};

use super::{Fault, RECIPES, packages};
use crate::support::{files, stderr};

/// A small file system, unmounted when dropped.
struct Tmpfs(tempfile::TempDir);

impl Tmpfs {
    fn new(options: &str) -> Self {
        let tmpfs = Self(tempfile::tempdir().unwrap());
        tmpfs.mount(options);
        tmpfs
    }

    /// Mounts it, or changes its options.
    fn mount(&self, options: &str) {
        let done =
            Command::new("mount").args(["-t", "tmpfs", "-o", options, "tmpfs"]).arg(self.path()).status().unwrap();
        assert!(done.success(), "mounting needs root");
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn join(&self, name: &str) -> String {
        self.path().join(name).to_str().unwrap().to_owned()
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        drop(Command::new("umount").arg(self.path()).status());
    }
}

fn bake(fault: &Fault, arguments: &[&str]) -> Output {
    fault.command(RECIPES[0], &[&["-q"], arguments].concat()).output().unwrap()
}

#[track_caller]
fn assert_refused(output: &Output, parts: &[&str]) {
    let text = stderr(output);
    assert_eq!(output.status.code(), Some(4), "{text}");
    for part in parts {
        assert!(text.contains(part), "no `{part}` in: {text}");
    }
    assert!(text.contains("  hint: "), "{text}");
}

#[test]
#[ignore = "needs root for a tmpfs"]
fn a_full_cache_disk_is_named_and_once_there_is_room_the_same_command_completes() {
    let fault = Fault::new();
    let templates = fault.templates();
    let pages = |bytes: &Vec<u8>| bytes.len().div_ceil(4096);
    let there: usize = files(&templates).values().map(pages).sum();
    let weights = fault.expected[0].iter().filter(|(path, _)| path.ends_with("weight.bin"));
    let needed: usize = weights.map(|(_, bytes)| pages(bytes)).sum();
    let disk = Tmpfs::new(&format!("size={}k", 4 * (there + needed / 2)));
    let cache = disk.join("cache");
    super::copy_tree(&templates, Path::new(&cache));
    let output = bake(&fault, &["--cache-dir", &cache]);
    assert_refused(&output, &[&format!("disk full at the cache `{cache}`")]);
    fault.assert_nothing_wrong("out");
    assert_eq!(super::temporaries(&disk.path().join("cache/tmp-v1")).len(), 0);
    disk.mount("remount,size=20m");
    let output = bake(&fault, &["--cache-dir", &cache]);
    assert!(output.status.success(), "{}", stderr(&output));
    fault.assert_complete(0, "out");
    let output = fault.bench.run(&["cache", "verify", "--cache-dir", &cache]);
    assert!(output.status.success());
}

#[test]
#[ignore = "needs root for a tmpfs"]
fn a_cache_disk_that_is_full_from_the_start_makes_no_template() {
    let fault = Fault::new();
    let disk = Tmpfs::new("size=64k");
    let output = bake(&fault, &["--cache-dir", &disk.join("cache")]);
    let text = stderr(&output);
    assert!(matches!(output.status.code(), Some(3 | 4)), "{text}");
    assert!(!fault.bench.path("out").exists());
    disk.mount("remount,size=20m");
    assert!(bake(&fault, &["--cache-dir", &disk.join("cache")]).status.success());
    fault.assert_complete(0, "out");
}

#[test]
#[ignore = "needs root for a tmpfs"]
fn a_full_output_disk_holds_whole_packages_only_and_once_there_is_room_the_same_command_completes() {
    let fault = Fault::new();
    let disk = Tmpfs::new("size=500k");
    let out = disk.join("out");
    let output = bake(&fault, &["--out", &out]);
    assert_refused(&output, &["cannot write `", "disk full at `", "choose another folder with `--out`"]);
    fault.assert_nothing_wrong(&out);
    let some = packages(Path::new(&out));
    assert!(!some.is_empty() && some.len() < fault.expected[0].len());
    assert!(!Path::new(&out).join("manifest.json").exists());
    fault.assert_tidy(&out);
    disk.mount("remount,size=20m");
    let output = bake(&fault, &["--out", &out]);
    assert!(output.status.success(), "{}", stderr(&output));
    fault.assert_complete(0, &out);
}

#[test]
#[ignore = "needs root for a tmpfs"]
fn a_read_only_output_is_refused_and_left_as_it_is() {
    let fault = Fault::new();
    let disk = Tmpfs::new("size=20m");
    let out = disk.join("out");
    assert!(bake(&fault, &["--out", &out]).status.success());
    disk.mount("remount,ro");
    assert!(bake(&fault, &["--out", &out]).status.success(), "nothing needs to be written");
    let output = fault.command(RECIPES[1], &["-q", "--out", &out]).output().unwrap();
    assert_refused(&output, &[&format!("(output folder `{out}`)"), "Read-only file system"]);
    fault.assert_complete(0, &out);
    let output = bake(&fault, &["--out", &disk.join("new")]);
    assert_refused(&output, &["cannot make the output folder", "Read-only file system"]);
}

#[test]
#[ignore = "needs root for a tmpfs"]
fn a_read_only_cache_serves_what_it_has_and_refuses_what_it_has_not() {
    let fault = Fault::new();
    let disk = Tmpfs::new("size=20m");
    let cache = disk.join("cache");
    assert!(bake(&fault, &["--cache-dir", &cache]).status.success());
    disk.mount("remount,ro");
    let output = bake(&fault, &["--cache-dir", &cache, "--out", "another", "--allow", "state-alignment"]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(stderr(&output), "");
    fault.assert_complete(0, "another");
    let output = fault.command(RECIPES[1], &["-q", "--cache-dir", &cache]).output().unwrap();
    assert_refused(&output, &[&format!("the cache `{cache}` is not writable")]);
}
