//! Checkpoints that change between bakes and under them.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, SystemTime};

use super::{Packages, packages};
use crate::support::{Bench, TinyModel, stderr};

/// A bench whose model is the first of two, the files of both, and what their bakes must be.
struct Changing {
    bench: Bench,
    files: [Vec<u8>; 2],
    expected: [Packages; 2],
}

impl Changing {
    fn new(layers: usize) -> Self {
        let bench = Bench::new(&TinyModel::with_layers("llama", 2, layers));
        let mut expected = [Packages::new(), Packages::new()];
        let mut files = [Vec::new(), Vec::new()];
        for seed in [1, 0] {
            TinyModel::with_layers("llama", 1 + seed as u64, layers).write(&bench.path("model"));
            files[seed] = std::fs::read(bench.path("model/model.safetensors")).unwrap();
            let out = ["first", "second"][seed];
            bench.convert(&["-q", "--cache-dir", "calm", "--out", out]);
            expected[seed] = packages(&bench.path(out));
        }
        assert_eq!(files[0].len(), files[1].len());
        Self { bench, files, expected }
    }

    /// Puts the bytes of one of the files in the place of the checkpoint's, as another file.
    fn replace(&self, with: usize) {
        let aside = self.bench.path("aside");
        std::fs::write(&aside, &self.files[with]).unwrap();
        std::fs::rename(aside, self.bench.path("model/model.safetensors")).unwrap();
    }

    /// The same in place: the inode stays.
    fn overwrite(&self, with: usize) {
        let file = File::options().write(true).open(self.bench.path("model/model.safetensors")).unwrap();
        file.write_all_at(&self.files[with], 0).unwrap();
    }

    fn found(&self) -> Option<usize> {
        let found = packages(&self.bench.path("out"));
        self.expected.iter().position(|expected| *expected == found)
    }
}

fn set_time(path: &Path, time: SystemTime) {
    File::options().write(true).open(path).unwrap().set_modified(time).unwrap();
}

#[test]
fn a_checkpoint_that_was_replaced_or_overwritten_is_baked_anew_even_with_its_old_time() {
    let changing = Changing::new(2);
    let path = changing.bench.path("model/model.safetensors");
    let old = SystemTime::now() - Duration::from_secs(3600);
    set_time(&path, old);
    for round in 0..4 {
        changing.bench.convert(&["-q"]);
        assert_eq!(changing.found(), Some(round % 2));
        let next = (round + 1) % 2;
        if round < 2 {
            changing.replace(next)
        } else {
            changing.overwrite(next)
        }
        set_time(&path, old);
    }
}

#[test]
fn a_checkpoint_that_changes_under_a_bake_is_noticed_and_never_mixed() {
    let changing = Changing::new(6);
    changing.bench.convert(&["-q", "--only", "0"]);
    let mut random = crate::support::Random(7);
    let bake = || {
        let mut command = changing.bench.command();
        command.args(["convert", "-q", "--force", "--model", "model", "--set", "package.context=128"]);
        command.stderr(std::process::Stdio::piped()).spawn().unwrap()
    };
    let (mut noticed, mut current, mut round) = (0, 0, 0);
    // How long a bake takes depends on what else the machine does: changes fall into as long as the last one took.
    let mut lasted = Duration::from_millis(120);
    while round < 24 || noticed == 0 {
        assert!(round < 400, "no change was noticed");
        let start = std::time::Instant::now();
        let child = bake();
        std::thread::sleep(lasted.mul_f64((random.bits() % 1000) as f64 / 1000.0));
        current = 1 - current;
        if round % 2 == 0 {
            changing.replace(current)
        } else {
            changing.overwrite(current)
        }
        let output = child.wait_with_output().unwrap();
        lasted = start.elapsed();
        match output.status.code() {
            Some(0) => assert!(changing.found().is_some(), "a mix of two checkpoints"),
            Some(4) => {
                let text = stderr(&output);
                assert!(text.contains("model.safetensors") && text.contains("changed"), "{text}");
                noticed += 1;
            }
            _ => panic!("{:?}: {}", output.status, stderr(&output)),
        }
        changing.bench.convert(&["-q"]);
        assert_eq!(changing.found(), Some(current), "round {round}");
        round += 1;
    }
}
