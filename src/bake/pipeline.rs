//! Runs a plan: digests, look-ups, template, stamping; blocks side by side.
//!
//! Workers digest blocks and look them up; the calling thread makes templates meanwhile, since Python lives there.
//! A block that must be baked before its template is ready is put aside and stamped when it is. Stamped blocks are made
//! durable and recorded by threads of their own, since waiting for the disk would leave the cores idle. Every finished
//! block is in the cache at once, so that an interrupted bake loses only what was in flight.

use std::collections::{BTreeMap, VecDeque};
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::plan::{Engine, Plan, PlannedBlock, digest_memos, known_digests, tensor_digests};
use super::stamp::{TensorReport, WeightSource, Workspace, stamp};
use super::template::Template;
use super::witness;
use crate::cache::{ActionKey, BlobRef, BlobWriter, Cache, Digest, DigestMemo, Lookup};
use crate::checkpoint::Checkpoint;
use crate::coremltools::{Environment, Python};
use crate::error::{Fault, Status};
use crate::mlpackage::{self, MANIFEST, MODEL, PackageFile, WEIGHTS};
use crate::quant::{Scheme, Source};

/// What happens to a block, for whoever shows progress.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum BlockState {
    /// Its tensors are being digested.
    Hashing,
    /// It waits for its template.
    Waiting,
    /// It is being baked.
    Baking,
    /// It was in the cache.
    Cached,
    /// It was baked.
    Baked {
        /// Bytes of the package.
        bytes: u64,
        /// How long stamping or converting took.
        seconds: f64,
    },
}

/// Threads that wait for the disk.
const COMMITTERS: usize = 2;

/// Told about progress, from several threads.
pub trait Progress: Sync {
    /// A block's state changed.
    fn block(&self, index: usize, state: BlockState);
    /// A template is being made by coremltools.
    fn template_started(&self);
    /// It is ready after this many seconds.
    fn template_ready(&self, seconds: f64);
}

/// A file of a baked package.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BakedFile {
    /// Path inside the package.
    pub path: String,
    /// Its bytes.
    pub blob: BlobRef,
}

/// A baked block: what the cache keeps and the manifest tells.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct BakedBlock {
    /// Hash of the package.
    pub package: Digest,
    /// Its files.
    pub files: Vec<BakedFile>,
    /// What happened to every tensor, in file order; empty for the engine `coremltools`.
    pub tensors: Vec<TensorReport>,
}

impl BakedBlock {
    /// A baked block of these files.
    pub fn new(mut files: Vec<BakedFile>, tensors: Vec<TensorReport>) -> Self {
        files.sort_by(|a, b| a.path.cmp(&b.path));
        let digests: Vec<String> = files.iter().map(|file| file.blob.sha256.to_string()).collect();
        let listed: Vec<_> = files
            .iter()
            .zip(&digests)
            .map(|(file, sha256)| PackageFile { path: &file.path, size: file.blob.size, sha256 })
            .collect();
        let package = Digest(mlpackage::package_hash(&listed));
        Self { package, files, tensors }
    }

    /// Bytes of the package.
    pub fn size(&self) -> u64 {
        self.files.iter().map(|file| file.blob.size).sum()
    }
}

/// What became of one block.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Number of the block.
    pub index: usize,
    /// Its key.
    pub key: ActionKey,
    /// Digests of its tensors, in the plan's order.
    pub digests: Vec<Digest>,
    /// The package.
    pub block: BakedBlock,
    /// Whether it was in the cache.
    pub cached: bool,
    /// Seconds of stamping or converting; 0 where it was cached.
    pub seconds: f64,
}

/// How to run.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Threads that digest and stamp.
    pub jobs: NonZeroUsize,
    /// Bake what is cached, too.
    pub force: bool,
    /// Fail rather than bake.
    pub frozen: bool,
}

/// What a run needs.
pub struct Bake<'a> {
    /// What to bake.
    pub plan: &'a Plan,
    /// From where.
    pub checkpoint: &'a Checkpoint,
    /// Through which cache.
    pub cache: &'a Cache,
    /// With which Python, should one be needed.
    pub environment: &'a Environment,
}

impl Bake<'_> {
    /// Bakes the plan's blocks that `wanted` accepts; returns them in the plan's order.
    ///
    /// # Errors
    /// The first error of any block; blocks that were finished by then are in the cache.
    pub fn run(
        &self,
        options: Options,
        progress: &dyn Progress,
        wanted: &(dyn Fn(usize) -> bool + Sync),
    ) -> Result<Vec<Outcome>> {
        let wanted: Vec<&PlannedBlock> = self.plan.blocks.iter().filter(|block| wanted(block.index)).collect();
        let memos = digest_memos(self.cache, self.checkpoint)?;
        let mut outcomes = BTreeMap::new();
        // Where everything hits, threads would cost more than they save.
        for block in wanted.iter().filter(|_| !options.force) {
            let Some(digests) = known_digests(&memos, &block.tensors) else { continue };
            let key = self.plan.block_key(block, &digests);
            if let Some(outcome) = self.look_up(block, key, &digests)? {
                progress.block(block.index, BlockState::Cached);
                outcomes.insert(block.index, outcome);
            }
        }
        let blocks: Vec<&PlannedBlock> =
            wanted.iter().filter(|block| !outcomes.contains_key(&block.index)).copied().collect();
        if !blocks.is_empty() {
            self.run_threads(&blocks, &memos, options, progress, &mut outcomes)?;
        }
        self.checkpoint.unchanged()?;
        wanted
            .iter()
            .map(|block| outcomes.remove(&block.index).context("a block was neither baked nor refused"))
            .collect()
    }

    fn look_up(&self, block: &PlannedBlock, key: ActionKey, digests: &[Digest]) -> Result<Option<Outcome>> {
        let Lookup::Hit { result } = self.cache.lookup::<BakedBlock>(&key)? else { return Ok(None) };
        let digests = digests.to_vec();
        Ok(Some(Outcome { index: block.index, key, digests, block: result, cached: true, seconds: 0.0 }))
    }

    fn run_threads(
        &self,
        blocks: &[&PlannedBlock],
        memos: &[DigestMemo<'_>],
        options: Options,
        progress: &dyn Progress,
        outcomes: &mut BTreeMap<usize, Outcome>,
    ) -> Result<()> {
        self.checkpoint.check()?;
        let workers = options.jobs.get().min(blocks.len().max(1));
        let run = Run {
            bake: self,
            options,
            progress,
            memos,
            next: AtomicUsize::new(0),
            blocks,
            failed: AtomicBool::new(false),
            board: Mutex::new(Board {
                templates: BTreeMap::new(),
                deferred: VecDeque::new(),
                stamped: VecDeque::new(),
                undigested: blocks.len(),
                stampers: workers,
            }),
            changed: Condvar::new(),
            outcomes: Mutex::new(BTreeMap::new()),
        };
        let outcome = std::thread::scope(|scope| {
            let handles: Vec<_> = (0..workers)
                .map(|_| scope.spawn(|| run.guard(|| run.work())))
                .chain((0..COMMITTERS).map(|_| scope.spawn(|| run.guard(|| run.commit()))))
                .collect();
            let mut result = run.guard(|| run.serve_python());
            for handle in handles {
                let worker = handle.join().unwrap_or_else(|_| Err(anyhow::anyhow!("a worker panicked")));
                result = result.and(worker);
            }
            result
        });
        for memo in memos {
            // One that cannot be written costs a hash next time; a read-only cache serves its hits all the same.
            let _ = memo.save();
        }
        outcome?;
        outcomes.extend(run.outcomes.into_inner().unwrap_or_else(PoisonError::into_inner));
        Ok(())
    }
}

/// State that the threads of a run share.
struct Run<'a> {
    bake: &'a Bake<'a>,
    options: Options,
    progress: &'a dyn Progress,
    memos: &'a [DigestMemo<'a>],
    blocks: &'a [&'a PlannedBlock],
    next: AtomicUsize,
    failed: AtomicBool,
    board: Mutex<Board<'a>>,
    changed: Condvar,
    outcomes: Mutex<BTreeMap<usize, Outcome>>,
}

/// What the threads tell each other.
struct Board<'a> {
    templates: BTreeMap<String, Slot>,
    deferred: VecDeque<Job>,
    stamped: VecDeque<Stamped<'a>>,
    undigested: usize,
    stampers: usize,
}

/// A block whose bytes are written, but not yet durable or recorded.
struct Stamped<'a> {
    job: Job,
    weights: BlobWriter<'a>,
    template: Arc<Template>,
    tensors: Vec<TensorReport>,
    start: Instant,
}

/// A template on its way.
enum Slot {
    Wanted { document: Box<Value>, key: ActionKey, block: usize },
    InWork,
    Ready(Arc<Template>),
}

/// A block that must be baked.
struct Job {
    position: usize,
    digests: Vec<Digest>,
    document: Value,
    key: ActionKey,
    template: String,
}

impl<'a> Run<'a> {
    /// Runs `body`; on an error or a panic wakes the others up so that they stop.
    fn guard(&self, body: impl FnOnce() -> Result<()>) -> Result<()> {
        struct Alarm<'r, 'a>(&'r Run<'a>, bool);
        impl Drop for Alarm<'_, '_> {
            fn drop(&mut self) {
                if self.1 {
                    self.0.failed.store(true, Ordering::SeqCst);
                }
                let _board = lock(&self.0.board);
                self.0.changed.notify_all();
            }
        }
        let mut alarm = Alarm(self, true);
        let result = body();
        alarm.1 = result.is_err();
        result
    }

    fn stopped(&self) -> bool {
        self.failed.load(Ordering::SeqCst)
    }

    /// A worker: digests, looks up, stamps. However it ends, the committers learn that no more comes from it.
    fn work(&self) -> Result<()> {
        struct SignOff<'r, 'a>(&'r Run<'a>);
        impl Drop for SignOff<'_, '_> {
            fn drop(&mut self) {
                lock(&self.0.board).stampers -= 1;
                self.0.changed.notify_all();
            }
        }
        let _sign_off = SignOff(self);
        self.stamp_all()
    }

    fn stamp_all(&self) -> Result<()> {
        let mut workspace = Workspace::default();
        while !self.stopped() {
            if let Some(job) = self.take_ready() {
                self.stamp(job, &mut workspace)?;
                continue;
            }
            let position = self.next.fetch_add(1, Ordering::SeqCst);
            if position < self.blocks.len() {
                self.look_up(position)?;
                let mut board = lock(&self.board);
                board.undigested -= 1;
                self.changed.notify_all();
                continue;
            }
            let board = lock(&self.board);
            let done = match self.bake.plan.engine {
                Engine::Native => board.undigested == 0 && board.deferred.is_empty(),
                Engine::Coremltools => true,
            };
            if done || self.stopped() {
                break;
            }
            drop(self.changed.wait_timeout(board, Duration::from_millis(50)));
        }
        Ok(())
    }

    /// A deferred block whose template is ready.
    fn take_ready(&self) -> Option<(Job, Arc<Template>)> {
        let mut board = lock(&self.board);
        let Board { templates, deferred, .. } = &mut *board;
        let found = deferred.iter().position(|job| matches!(templates.get(&job.template), Some(Slot::Ready(_))))?;
        let job = deferred.remove(found)?;
        match templates.get(&job.template) {
            Some(Slot::Ready(template)) => Some((job, Arc::clone(template))),
            _ => None,
        }
    }

    /// Digests a block's tensors and looks the block up; puts it on the board where it must be baked.
    fn look_up(&self, position: usize) -> Result<()> {
        let block = self.blocks[position];
        let plan = self.bake.plan;
        self.progress.block(block.index, BlockState::Hashing);
        let digests = tensor_digests(self.bake.checkpoint, self.memos, &block.tensors);
        let key = plan.block_key(block, &digests);
        if !self.options.force
            && let Some(outcome) = self.bake.look_up(block, key, &digests)?
        {
            self.progress.block(block.index, BlockState::Cached);
            self.finish(outcome);
            return Ok(());
        }
        if self.options.frozen {
            return Err(Fault::new(Status::Incomplete, format!("block {} is not in the cache", block.index))
                .with_hint("bake it without `--frozen`; `anebake explain` tells what changed")
                .into());
        }
        let document = plan.block_document(block, &digests);
        let (template_document, template_key) = plan.template_action(block);
        let template = template_key.to_string();
        self.progress.block(block.index, BlockState::Waiting);
        let mut board = lock(&self.board);
        if plan.engine == Engine::Native {
            board.templates.entry(template.clone()).or_insert_with(|| Slot::Wanted {
                document: Box::new(template_document),
                key: template_key,
                block: position,
            });
        }
        board.deferred.push_back(Job { position, digests, document, key, template });
        self.changed.notify_all();
        Ok(())
    }

    /// The calling thread's part: everything that needs Python.
    fn serve_python(&self) -> Result<()> {
        match self.bake.plan.engine {
            Engine::Native => self.serve_templates(),
            Engine::Coremltools => self.bake_by_coremltools(),
        }
    }

    fn serve_templates(&self) -> Result<()> {
        loop {
            let mut board = lock(&self.board);
            let wanted = board.templates.iter().find(|(_, slot)| matches!(slot, Slot::Wanted { .. }));
            let Some(name) = wanted.map(|(name, _)| name.clone()) else {
                if board.undigested == 0 || self.stopped() {
                    return Ok(());
                }
                drop(self.changed.wait_timeout(board, Duration::from_millis(50)));
                continue;
            };
            let Some(Slot::Wanted { document, key, block }) = board.templates.insert(name.clone(), Slot::InWork) else {
                continue;
            };
            drop(board);
            let template = self.template(&document, &key, self.blocks[block])?;
            lock(&self.board).templates.insert(name, Slot::Ready(Arc::new(template)));
            self.changed.notify_all();
        }
    }

    fn template(&self, document: &Value, key: &ActionKey, block: &PlannedBlock) -> Result<Template> {
        let Bake { plan, cache, environment, .. } = self.bake;
        if let Some(template) = Template::cached(cache, key)? {
            return Ok(template);
        }
        let start = Instant::now();
        self.progress.template_started();
        let python = Python::start(environment)?;
        let template =
            Template::make(cache, python, key, document, &block.request.value, &block.tensors, plan.compute)?;
        self.progress.template_ready(start.elapsed().as_secs_f64());
        Ok(template)
    }

    fn stamp(&self, (job, template): (Job, Arc<Template>), workspace: &mut Workspace) -> Result<()> {
        let block = self.blocks[job.position];
        let Bake { plan, checkpoint, cache, .. } = self.bake;
        let start = Instant::now();
        self.progress.block(block.index, BlockState::Baking);
        checkpoint.unchanged()?;
        let source = BlockWeights { checkpoint, block };
        let mut weights = cache.blob_writer()?.with_expected_size(template.layout.size);
        let mut sink = |bytes: &[u8]| weights.append(bytes);
        let tensors = stamp(&template.layout, &template.statics, plan.compute, &source, workspace, &mut sink)
            .with_context(|| format!("cannot bake block {}", block.index))?;
        lock(&self.board).stamped.push_back(Stamped { job, weights, template, tensors, start });
        self.changed.notify_all();
        Ok(())
    }

    /// A committer: makes stamped blocks durable and records them, until no worker is left.
    fn commit(&self) -> Result<()> {
        loop {
            let mut board = lock(&self.board);
            let Some(stamped) = board.stamped.pop_front() else {
                if board.stampers == 0 {
                    return Ok(());
                }
                drop(self.changed.wait_timeout(board, Duration::from_millis(50)));
                continue;
            };
            drop(board);
            let Stamped { job, weights, template, tensors, start } = stamped;
            let file = |path: &str, blob| BakedFile { path: path.to_owned(), blob };
            let weights = file(WEIGHTS, weights.commit()?);
            let files = vec![file(MODEL, template.model), file(MANIFEST, template.manifest), weights];
            self.record(job, BakedBlock::new(files, tensors), start)?;
        }
    }

    fn bake_by_coremltools(&self) -> Result<()> {
        loop {
            let mut board = lock(&self.board);
            let Some(job) = board.deferred.pop_front() else {
                if board.undigested == 0 || self.stopped() {
                    return Ok(());
                }
                drop(self.changed.wait_timeout(board, Duration::from_millis(50)));
                continue;
            };
            drop(board);
            if self.stopped() {
                return Ok(());
            }
            let block = self.blocks[job.position];
            let Bake { checkpoint, cache, environment, .. } = self.bake;
            let start = Instant::now();
            self.progress.block(block.index, BlockState::Baking);
            checkpoint.unchanged()?;
            let python = Python::start(environment)?;
            let source = BlockWeights { checkpoint, block };
            let files = witness::convert(cache, python, block, &source)
                .with_context(|| format!("coremltools cannot convert block {}", block.index))?;
            self.record(job, BakedBlock::new(files, Vec::new()), start)?;
        }
    }

    fn record(&self, job: Job, baked: BakedBlock, start: Instant) -> Result<()> {
        let block = self.blocks[job.position];
        let blobs: Vec<BlobRef> = baked.files.iter().map(|file| file.blob).collect();
        self.bake.checkpoint.unchanged()?;
        let subject = self.bake.plan.subject(block);
        self.bake.cache.record(&job.key, &job.document, &baked, &blobs, Some(&subject))?;
        let seconds = start.elapsed().as_secs_f64();
        self.progress.block(block.index, BlockState::Baked { bytes: baked.size(), seconds });
        self.finish(Outcome {
            index: block.index,
            key: job.key,
            digests: job.digests,
            block: baked,
            cached: false,
            seconds,
        });
        Ok(())
    }

    fn finish(&self, outcome: Outcome) {
        lock(&self.outcomes).insert(outcome.index, outcome);
    }
}

/// A block's tensors in the checkpoint.
pub struct BlockWeights<'a> {
    /// The checkpoint.
    pub checkpoint: &'a Checkpoint,
    /// The block.
    pub block: &'a PlannedBlock,
}

impl BlockWeights<'_> {
    fn find(&self, role: &str) -> Result<&super::plan::PlannedTensor> {
        let found = self.block.tensors.iter().find(|planned| planned.tensor.role == role);
        found.with_context(|| format!("block {} has no tensor `{role}`", self.block.index))
    }
}

impl WeightSource for BlockWeights<'_> {
    fn values<'a>(&'a self, role: &str, buffer: &'a mut Vec<u8>) -> Result<Source<'a>> {
        let planned = self.find(role)?;
        let values = self.checkpoint.read(&planned.source, buffer)?;
        let (rows, cols) = planned.matrix();
        Ok(Source { dtype: values.dtype, bytes: values.bytes, rows, cols })
    }

    fn scheme(&self, role: &str) -> Option<Scheme> {
        self.find(role).ok()?.scheme
    }

    fn name(&self, role: &str) -> String {
        match self.find(role) {
            Ok(planned) => planned.source.name.to_owned(),
            Err(_) => role.to_owned(),
        }
    }

    fn release(&self, role: &str) {
        if let Ok(planned) = self.find(role) {
            self.checkpoint.release(&planned.source);
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
