//! Makes what a ladder's folder lacks.

use std::path::Path;

use anyhow::Result;

use super::{About, FILE_NAME, Ladder, MadeBy, Rung, SCHEMA};
use crate::cache::{BlobRef, Digest, TempDir, move_out, sweep_stale};
use crate::coremltools::{Environment, Python, sources_digest};
use crate::error::{Fault, OrFault};
use crate::mlpackage::package_digest;

/// Is told how far the ladder is.
pub trait Progress {
    /// `done` of `total` rungs are there; `id` comes next.
    fn rung(&self, done: usize, total: usize, id: &str);
}

/// Makes the rungs that `folder` lacks, or that were made by other tools, or are damaged; gives the whole ladder.
/// Python is started only where one must be made; where all are there, no environment is needed. What is finished stays
/// when it is interrupted.
///
/// # Errors
/// An environment fault where Python fails, an input fault where the folder cannot be written.
pub fn bake(folder: &Path, environment: Result<Environment>, progress: &dyn Progress) -> Result<Ladder> {
    let found = Ladder::read(folder)?;
    let environment = match (environment, &found) {
        (Ok(environment), _) => environment,
        // Baked elsewhere and carried here.
        (Err(_), Some(ladder)) if ladder.is_whole(folder) => return Ok(ladder.clone()),
        (Err(error), _) => return Err(error),
    };
    let made_by = MadeBy { python_sources: sources_digest().to_owned(), tools: environment.tool_versions()?.clone() };
    let found = found.filter(|ladder| ladder.made_by == made_by);
    if let Some(ladder) = &found
        && ladder.is_whole(folder)
    {
        return Ok(ladder.clone());
    }
    std::fs::create_dir_all(folder)
        .or_fault(|| Fault::input(format!("cannot make the folder `{}`", folder.display())))?;
    sweep_stale(folder);
    let python = Python::start(&environment)?;
    let wanted: Vec<About> = serde_json::from_str(&python.rungs()?)
        .or_fault(|| Fault::environment("the list of rungs is not what it should be"))?;
    let mut ladder = Ladder { schema: SCHEMA, made_by, complete: false, rungs: Vec::new() };
    for (index, about) in wanted.iter().enumerate() {
        progress.rung(index, wanted.len(), &about.id);
        let kept = found.iter().flat_map(|ladder| &ladder.rungs).find(|rung| rung.about == *about);
        let rung = match kept {
            Some(rung) if rung.is_whole(folder) => rung.clone(),
            _ => make(python, folder, about)?,
        };
        ladder.rungs.push(rung);
        ladder.complete = index + 1 == wanted.len();
        write(folder, &ladder)?;
    }
    Ok(ladder)
}

fn make(python: &Python, folder: &Path, about: &About) -> Result<Rung> {
    let temporary = TempDir::new_in(folder)?;
    let calls = python.rung(&about.id, temporary.path())?;
    let (package, arrays) = (about.package(temporary.path()), about.arrays(temporary.path()));
    let rung = Rung {
        about: about.clone(),
        calls,
        package_sha256: package_digest(&package)?,
        calls_sha256: file_digest(&arrays)?,
    };
    move_out(|| {
        let (place, arrays_place) = (about.package(folder), about.arrays(folder));
        if place.exists() {
            std::fs::rename(&place, temporary.path().join("before"))?;
        }
        std::fs::rename(package, place)?;
        std::fs::rename(arrays, arrays_place)?;
        Ok(())
    })
    .or_fault(|| Fault::input(format!("cannot write `{}` to `{}`", about.id, folder.display())))?;
    Ok(rung)
}

fn write(folder: &Path, ladder: &Ladder) -> Result<()> {
    let path = folder.join(FILE_NAME);
    let mut text = serde_json::to_vec_pretty(ladder)?;
    text.push(b'\n');
    TempDir::new_in(folder)?
        .write_out(&path, &text, None)
        .or_fault(|| Fault::input(format!("cannot write `{}`", path.display())))
}

fn file_digest(path: &Path) -> Result<Digest> {
    let blob = BlobRef::of_file(path).or_fault(|| Fault::input(format!("cannot read `{}`", path.display())))?;
    Ok(blob.sha256)
}

impl Ladder {
    /// Whether every rung is there as it was made.
    fn is_whole(&self, folder: &Path) -> bool {
        self.complete && self.rungs.iter().all(|rung| rung.is_whole(folder))
    }
}

impl Rung {
    fn is_whole(&self, folder: &Path) -> bool {
        package_digest(&self.about.package(folder)).is_ok_and(|found| found == self.package_sha256)
            && file_digest(&self.about.arrays(folder)).is_ok_and(|found| found == self.calls_sha256)
    }
}
