//! A template: one part authored and converted by coremltools, whose weights are replaced to make those of every model
//! of the same form; one block serves for all blocks of a model.
//!
//! Templates are cached like packages. A template is proven when it is made: stamping its own probe weights natively
//! must give its own `weight.bin`, byte for byte.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::layout::{Layout, TemplateTensor, learn};
use super::part::PlannedTensor;
use super::stamp::{WeightSource, Workspace, stamp};
use crate::cache::{ActionKey, BlobRef, Cache, Damaged, Lookup};
use crate::coremltools::{PACKAGE, PROBES, Python, TemplateReply};
use crate::mlpackage::{MANIFEST, MODEL, Package};
use crate::quant::{ComputeDtype, Scheme, Source, SourceDtype};

/// A template ready to stamp.
#[derive(Debug)]
pub struct Template {
    /// Where every tensor lies.
    pub layout: Layout,
    /// Bytes that are the same in every package.
    pub statics: Vec<u8>,
    /// `model.mlmodel`, the same in every package.
    pub model: BlobRef,
    /// `Manifest.json`, the same in every package.
    pub manifest: BlobRef,
}

/// What the cache keeps of a template.
#[derive(Serialize, Deserialize)]
struct TemplateResult {
    layout: Layout,
    statics: BlobRef,
    model: BlobRef,
    manifest: BlobRef,
}

impl Template {
    /// The cached template, if there is one and it is whole.
    ///
    /// # Errors
    /// The cache cannot be read.
    pub fn cached(cache: &Cache, key: &ActionKey) -> Result<Option<Self>> {
        let Lookup::Hit { result } = cache.lookup::<TemplateResult>(key)? else { return Ok(None) };
        let statics = match cache.read(&result.statics) {
            Err(error) if error.is::<Damaged>() => return Ok(None),
            statics => statics?,
        };
        Ok(Some(Self { layout: result.layout, statics, model: result.model, manifest: result.manifest }))
    }

    /// Has coremltools author and convert one part, learns its layout, proves it, and records it in the cache.
    ///
    /// # Errors
    /// Python or coremltools fails; the package holds bytes that nothing accounts for; the proof fails.
    pub fn make(
        cache: &Cache,
        python: &Python,
        key: &ActionKey,
        document: &Value,
        request: &Value,
        tensors: &[PlannedTensor],
        compute: ComputeDtype,
    ) -> Result<Self> {
        let folder = cache.temporary_folder()?;
        let reply = python.template(request, folder.path())?;
        let package_path = folder.path().join(PACKAGE);
        let package = Package::open(&package_path)?;
        let names: Vec<_> = tensors
            .iter()
            .map(|planned| TemplateTensor {
                role: &planned.tensor.role,
                const_name: &planned.tensor.const_name,
                quantized: planned.scheme.is_some(),
            })
            .collect();
        let (layout, statics) = learn(&package.blobs()?, package.weights(), &names, &reply.statics)
            .context("the template's `weight.bin` is not what was authored")?;
        let probe = Probe { folder: folder.path().join(PROBES), tensors, reply: &reply, compute };
        prove(&layout, &statics, compute, &package, &probe)?;
        let result = TemplateResult {
            layout,
            statics: cache.put(&statics)?,
            model: cache.adopt(&package_path.join(MODEL))?,
            manifest: cache.adopt(&package_path.join(MANIFEST))?,
        };
        let blobs = [result.statics, result.model, result.manifest];
        cache.record(key, document, &result, &blobs, None)?;
        Ok(Self { layout: result.layout, statics, model: result.model, manifest: result.manifest })
    }
}

/// Stamps the probe and compares with what coremltools wrote, stopping at the first byte that differs.
fn prove(layout: &Layout, statics: &[u8], compute: ComputeDtype, package: &Package, probe: &Probe<'_>) -> Result<()> {
    let expected = package.weights();
    let (mut position, mut released) = (0, 0);
    let mut compare = |bytes: &[u8]| {
        let rest = &expected[position..];
        if rest.get(..bytes.len()) != Some(bytes) {
            let first = bytes.iter().zip(rest).take_while(|(a, b)| a == b).count();
            bail!(
                "byte {} differs: stamped {:?}, coremltools {:?}",
                position + first,
                bytes.get(first),
                rest.get(first)
            );
        }
        position += bytes.len();
        if position - released >= RELEASED {
            package.release_weights(position);
            released = position;
        }
        Ok(())
    };
    stamp(layout, statics, compute, probe, &mut Workspace::default(), &mut compare)
        .context("stamping the template's own weights does not give the bytes that coremltools wrote")?;
    if position != expected.len() {
        bail!("stamping gives {position} bytes, coremltools wrote {}", expected.len());
    }
    Ok(())
}

/// Compared bytes after which their memory is given back.
const RELEASED: usize = 4 << 20;

/// The weights that the template was made with, as Python left them in a folder.
struct Probe<'a> {
    folder: PathBuf,
    tensors: &'a [PlannedTensor],
    reply: &'a TemplateReply,
    compute: ComputeDtype,
}

impl Probe<'_> {
    fn planned(&self, role: &str) -> Result<&PlannedTensor> {
        self.tensors.iter().find(|planned| planned.tensor.role == role).with_context(|| format!("no tensor `{role}`"))
    }
}

impl WeightSource for Probe<'_> {
    fn values<'b>(&'b self, role: &str, buffer: &'b mut Vec<u8>) -> Result<Source<'b>> {
        let dtype = match self.compute {
            ComputeDtype::F16 => SourceDtype::F16,
            ComputeDtype::F32 => SourceDtype::F32,
        };
        let (rows, cols) = self.planned(role)?.matrix();
        let made = self.reply.tensors.iter().find(|tensor| tensor.role == role);
        let place = &made.with_context(|| format!("the template has no tensor `{role}`"))?.probe;
        let path = self.folder.join(&place.file);
        buffer.resize(rows * cols * dtype.size(), 0);
        File::open(&path)
            .and_then(|file| file.read_exact_at(buffer, place.offset))
            .with_context(|| format!("cannot read `{}`", path.display()))?;
        Ok(Source { dtype, bytes: buffer, rows, cols })
    }

    fn scheme(&self, role: &str) -> Option<Scheme> {
        self.planned(role).ok()?.scheme
    }

    fn name(&self, role: &str) -> String {
        format!("probe of {role}")
    }
}
