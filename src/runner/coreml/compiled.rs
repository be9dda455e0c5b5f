//! Compiled models, kept between runs.
//!
//! ```text
//! <cache>/compiled-v1/<key>/model.mlmodelc/…
//!                           entry.json          what it was compiled from, and the SHA-256 of each of its files
//! ```
//!
//! The key is the hash of the package, the build of the operating system and the chip: compiled models are not portable
//! between any of them. An entry is written in a temporary folder and renamed into place. Before each use its files are
//! hashed; a damaged entry is compiled again.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, ensure};
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::System;
use crate::cache::{BlobRef, Digest, TempDir, canonical_json, move_out, sweep_stale};
use crate::error::{Fault, OrFault};
use crate::mlpackage::{files, package_digest};

/// The folder's name in anebake's cache.
const FOLDER: &str = "compiled-v1";
/// The compiled model in an entry.
const MODEL: &str = "model.mlmodelc";
const ENTRY: &str = "entry.json";
/// Entries that were not used for so long make room when another is written.
const UNUSED: Duration = Duration::from_secs(30 * 24 * 3600);

/// The compiled models of one cache folder.
#[derive(Clone, Debug)]
pub struct CompiledModels {
    root: PathBuf,
    build: String,
    chip: String,
}

/// A compiled model on disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Compiled {
    /// The `.mlmodelc` folder.
    pub path: PathBuf,
    /// Whether an earlier run had compiled it.
    pub cached: bool,
}

/// What an entry holds.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    package: Digest,
    build: String,
    chip: String,
    /// Path in the compiled model, and the file.
    files: BTreeMap<String, BlobRef>,
}

impl CompiledModels {
    /// Those in anebake's cache folder `cache`, for `system`. Creates nothing.
    pub fn new(cache: &Path, system: &System) -> Self {
        Self { root: cache.join(FOLDER), build: system.build.clone(), chip: system.chip.clone() }
    }

    /// The compiled form of `package`. Where there is none yet, or it is damaged, `compile` is given the package and the
    /// path to compile it to.
    ///
    /// # Errors
    /// The package cannot be read, the cache cannot be written, or what `compile` says.
    pub fn get(&self, package: &Path, compile: &dyn Fn(&Path, &Path) -> Result<()>) -> Result<Compiled> {
        let hash = package_digest(package)?;
        let name = self.key(&hash);
        let place = self.root.join(&name);
        if self.whole(&place, &hash) {
            // Only for the age of the entry.
            drop(File::open(place.join(ENTRY)).and_then(|entry| entry.set_modified(SystemTime::now())));
            return Ok(Compiled { path: place.join(MODEL), cached: true });
        }
        fs::create_dir_all(&self.root)
            .or_fault(|| Fault::input(format!("cannot make the folder `{}`", self.root.display())))?;
        sweep_stale(&self.root);
        self.remove_unused();
        let temporary = TempDir::new_in(&self.root)?;
        let new = temporary.path().join(name);
        fs::create_dir(&new).with_context(|| format!("cannot make `{}`", new.display()))?;
        compile(package, &new.join(MODEL))?;
        let entry = Entry {
            package: hash,
            build: self.build.clone(),
            chip: self.chip.clone(),
            files: files(&new.join(MODEL))?,
        };
        ensure!(!entry.files.is_empty(), "Core ML compiled `{}` to an empty folder", package.display());
        fs::write(new.join(ENTRY), serde_json::to_vec(&entry)?).context("cannot describe the compiled model")?;
        self.place(&new, &place, &hash, temporary.path())
            .or_fault(|| Fault::input(format!("cannot keep a compiled model in `{}`", self.root.display())))?;
        Ok(Compiled { path: place.join(MODEL), cached: false })
    }

    fn key(&self, package: &Digest) -> String {
        let document = json!({ "package": package.to_string(), "build": self.build, "chip": self.chip });
        Digest::of(&canonical_json(&document)).to_string()
    }

    /// Moves `new` to `place`, unless another process has put a whole one there meanwhile; what is damaged goes to
    /// `aside` first. Processes take turns, so that none moves away what another has just put there.
    fn place(&self, new: &Path, place: &Path, hash: &Digest, aside: &Path) -> Result<()> {
        let turn = File::open(&self.root)?;
        flock(&turn, FlockOperation::LockExclusive)?;
        if self.whole(place, hash) {
            return Ok(());
        }
        match fs::rename(place, aside.join("damaged")) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error.into()),
            _ => {}
        }
        move_out(|| Ok(fs::rename(new, place)?))
    }

    /// Whether an entry is there and as it was written. Files that were added later are no damage.
    fn whole(&self, place: &Path, hash: &Digest) -> bool {
        let entry = fs::read(place.join(ENTRY)).ok().and_then(|text| serde_json::from_slice::<Entry>(&text).ok());
        entry.is_some_and(|entry| {
            let same = (&entry.package, &entry.build, &entry.chip) == (hash, &self.build, &self.chip);
            let model = place.join(MODEL);
            let unchanged = |(path, blob): (&String, &BlobRef)| {
                BlobRef::of_file(&model.join(path)).is_ok_and(|found| found == *blob)
            };
            same && entry.files.iter().all(unchanged)
        })
    }

    /// Removes what was not used for long. What cannot be removed stays.
    fn remove_unused(&self) {
        let Ok(entries) = fs::read_dir(&self.root) else { return };
        for entry in entries.flatten() {
            let used = fs::metadata(entry.path().join(ENTRY)).and_then(|metadata| metadata.modified());
            if used.is_ok_and(|at| SystemTime::now().duration_since(at).is_ok_and(|age| age > UNUSED)) {
                drop(fs::remove_dir_all(entry.path()));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use anyhow::bail;

    use super::*;

    /// A folder with a package, and the number of compilations that were asked for.
    struct Bench {
        folder: tempfile::TempDir,
        compilations: AtomicUsize,
    }

    impl Bench {
        fn new() -> Self {
            let folder = tempfile::tempdir().unwrap();
            fs::create_dir_all(folder.path().join("a.mlpackage/Data")).unwrap();
            fs::write(folder.path().join("a.mlpackage/Data/model"), "one").unwrap();
            Self { folder, compilations: AtomicUsize::new(0) }
        }

        fn package(&self) -> PathBuf {
            self.folder.path().join("a.mlpackage")
        }

        fn models(&self, build: &str, chip: &str) -> CompiledModels {
            let system = System { build: build.to_owned(), chip: chip.to_owned(), ..System::of_this_machine() };
            CompiledModels::new(&self.folder.path().join("cache"), &system)
        }

        fn get(&self, models: &CompiledModels) -> Compiled {
            let compile = |package: &Path, to: &Path| {
                self.compilations.fetch_add(1, Ordering::SeqCst);
                fs::create_dir_all(to.join("weights"))?;
                fs::copy(package.join("Data/model"), to.join("weights/weight.bin"))?;
                Ok(fs::write(to.join("model.mil"), "program")?)
            };
            let compiled = models.get(&self.package(), &compile).unwrap();
            let text = fs::read_to_string(compiled.path.join("weights/weight.bin")).unwrap();
            assert_eq!(text, fs::read_to_string(self.package().join("Data/model")).unwrap());
            compiled
        }

        /// How often was compiled until now.
        fn count(&self) -> usize {
            self.compilations.load(Ordering::SeqCst)
        }

        fn temporaries(&self) -> usize {
            let entries = fs::read_dir(self.folder.path().join("cache").join(FOLDER)).unwrap();
            entries.filter(|entry| entry.as_ref().unwrap().file_name().to_string_lossy().starts_with('.')).count()
        }
    }

    #[test]
    fn a_model_is_compiled_once_for_a_package_a_build_and_a_chip() {
        let bench = Bench::new();
        let models = bench.models("24D60", "Apple M4");
        assert!(!bench.get(&models).cached);
        assert!(bench.get(&models).cached);
        assert_eq!((bench.count(), bench.temporaries()), (1, 0));
        for (build, chip) in [("24D70", "Apple M4"), ("24D60", "Apple M5")] {
            assert!(!bench.get(&bench.models(build, chip)).cached);
        }
        fs::write(bench.package().join("Data/model"), "two").unwrap();
        assert!(!bench.get(&models).cached);
        assert_eq!(bench.count(), 4);
        fs::write(bench.package().join("Data/model"), "one").unwrap();
        assert!(bench.get(&models).cached);
    }

    #[test]
    fn a_damaged_or_cut_off_entry_is_compiled_again_and_additions_are_no_damage() {
        let bench = Bench::new();
        let models = bench.models("24D60", "Apple M4");
        let path = bench.get(&models).path;
        let entry = path.with_file_name(ENTRY);
        let damages: [&dyn Fn(); 4] = [
            &|| fs::write(path.join("model.mil"), "prog-am").unwrap(),
            &|| fs::remove_file(path.join("weights/weight.bin")).unwrap(),
            &|| fs::write(&entry, &fs::read(&entry).unwrap()[..20]).unwrap(),
            &|| fs::remove_file(&entry).unwrap(),
        ];
        for (index, damage) in damages.iter().enumerate() {
            damage();
            assert!(!bench.get(&models).cached, "damage {index}");
            assert!(bench.get(&models).cached, "damage {index}");
            assert_eq!(fs::read_to_string(path.join("model.mil")).unwrap(), "program");
        }
        fs::write(path.join("analytics"), "Core ML may leave something here").unwrap();
        assert!(bench.get(&models).cached);
        assert_eq!((bench.count(), bench.temporaries()), (5, 0));
    }

    #[test]
    fn many_at_once_all_get_a_whole_model() {
        let bench = Bench::new();
        let models = bench.models("24D60", "Apple M4");
        for round in 0..8 {
            if round % 2 == 1 {
                // Damaged: all of them want to replace it.
                fs::write(bench.get(&models).path.join("model.mil"), "damaged").unwrap();
            }
            std::thread::scope(|scope| {
                let all: Vec<_> = (0..6).map(|_| scope.spawn(|| bench.get(&models).path)).collect();
                all.into_iter().for_each(|one| drop(one.join().unwrap()));
            });
            assert!(bench.get(&models).cached);
            assert_eq!(bench.temporaries(), 0);
        }
    }

    #[test]
    fn a_failed_compilation_leaves_nothing_and_its_error_is_told() {
        let bench = Bench::new();
        let models = bench.models("24D60", "Apple M4");
        let error = models.get(&bench.package(), &|_, _| bail!("no such op")).unwrap_err();
        assert_eq!(error.to_string(), "no such op");
        assert_eq!(fs::read_dir(&models.root).unwrap().count(), 0);
        let empty = |_: &Path, to: &Path| Ok(fs::create_dir(to)?);
        let error = models.get(&bench.package(), &empty).unwrap_err();
        assert!(error.to_string().ends_with("to an empty folder"), "{error}");
        let missing = bench.folder.path().join("b.mlpackage");
        let error = models.get(&missing, &|_, _| unreachable!()).unwrap_err();
        assert!(error.to_string().starts_with("cannot read the package"), "{error}");
    }

    #[test]
    fn entries_that_were_not_used_for_long_make_room_for_new_ones() {
        let bench = Bench::new();
        let (old, used) = (bench.models("old", "chip"), bench.models("used", "chip"));
        let [old_path, used_path] = [&old, &used].map(|models| bench.get(models).path.with_file_name(ENTRY));
        for entry in [&old_path, &used_path] {
            File::open(entry).unwrap().set_modified(SystemTime::now() - 2 * UNUSED).unwrap();
        }
        assert!(bench.get(&used).cached);
        bench.get(&bench.models("new", "chip"));
        assert_eq!((old_path.exists(), used_path.exists()), (false, true));
    }
}
