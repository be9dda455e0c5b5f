//! The other road: a part converted and quantized by coremltools itself, as any user of coremltools would.

use anyhow::Result;

use super::part::PlannedPart;
use super::pipeline::BakedFile;
use super::stamp::WeightSource;
use crate::cache::Cache;
use crate::coremltools::{PACKAGE, Python, SourceArray};
use crate::mlpackage::{MANIFEST, MODEL, WEIGHTS};

/// Converts one part; returns the files of its package, in the cache.
///
/// # Errors
/// A tensor cannot be read, or Python or coremltools fails.
pub fn convert(
    cache: &Cache,
    python: &Python,
    part: &PlannedPart,
    source: &dyn WeightSource,
) -> Result<Vec<BakedFile>> {
    let mut owned = Vec::with_capacity(part.tensors.len());
    for planned in &part.tensors {
        let role = &*planned.tensor.role;
        let mut buffer = Vec::new();
        let values = source.values(role, &mut buffer)?;
        owned.push((role, values.dtype, planned.tensor.shape.clone(), values.bytes.to_vec()));
        source.release(role, 0..u64::MAX);
    }
    let arrays: Vec<_> = owned
        .iter()
        .map(|(role, dtype, shape, bytes)| {
            (role.to_string(), SourceArray { dtype: *dtype, shape: shape.clone(), bytes })
        })
        .collect();
    let folder = cache.temporary_folder()?;
    python.convert(&part.request.value, &arrays, folder.path())?;
    let package = folder.path().join(PACKAGE);
    [MODEL, MANIFEST, WEIGHTS]
        .into_iter()
        .map(|path| Ok(BakedFile { path: path.to_owned(), blob: cache.adopt(&package.join(path))? }))
        .collect()
}
