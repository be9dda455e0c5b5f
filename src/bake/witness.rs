//! The other road: a block converted and quantized by coremltools itself, as any user of coremltools would.

use anyhow::Result;

use super::pipeline::BakedFile;
use super::plan::PlannedBlock;
use super::stamp::WeightSource;
use crate::cache::Cache;
use crate::coremltools::{PACKAGE, Python, SourceArray};
use crate::mlpackage::{MANIFEST, MODEL, WEIGHTS};

/// Converts one block; returns the files of its package, in the cache.
///
/// # Errors
/// A tensor cannot be read, or Python or coremltools fails.
pub fn convert(
    cache: &Cache,
    python: &Python,
    block: &PlannedBlock,
    source: &dyn WeightSource,
) -> Result<Vec<BakedFile>> {
    let mut owned = Vec::with_capacity(block.tensors.len());
    for planned in &block.tensors {
        let role = planned.tensor.role;
        let mut buffer = Vec::new();
        let values = source.values(role, &mut buffer)?;
        owned.push((role, values.dtype, planned.tensor.shape.clone(), values.bytes.to_vec()));
        source.release(role);
    }
    let arrays: Vec<_> = owned
        .iter()
        .map(|(role, dtype, shape, bytes)| {
            ((*role).to_owned(), SourceArray { dtype: *dtype, shape: shape.clone(), bytes })
        })
        .collect();
    let folder = cache.temporary_folder()?;
    python.convert_block(&block.request.value, &arrays, folder.path())?;
    let package = folder.path().join(PACKAGE);
    [MODEL, MANIFEST, WEIGHTS]
        .into_iter()
        .map(|path| Ok(BakedFile { path: path.to_owned(), blob: cache.adopt(&package.join(path))? }))
        .collect()
}
