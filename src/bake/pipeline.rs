//! Runs a plan: digests, look-ups, template, stamping; parts side by side.
//!
//! Workers digest parts and look them up; the calling thread makes templates meanwhile, since Python lives there.
//! A part that must be baked before its template is ready is put aside and stamped when it is. Stamped parts are made
//! durable and recorded by threads of their own, since waiting for the disk would leave the cores idle. Every finished
//! part is in the cache at once, so that an interrupted bake loses only what was in flight.

use std::collections::{BTreeMap, VecDeque};
use std::num::NonZeroUsize;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::part::{Part, PlannedPart, PlannedTensor};
use super::plan::{Engine, Plan, digest_memos, known_digests, tensor_digests};
use super::stamp::{TensorReport, WeightSource, Workspace, flat, stamp};
use super::template::Template;
use super::witness;
use crate::cache::{ActionKey, BlobRef, BlobWriter, Cache, Digest, DigestMemo, Lookup};
use crate::checkpoint::Checkpoint;
use crate::coremltools::{Environment, Python};
use crate::error::{Fault, Status};
use crate::mlpackage::{self, MANIFEST, MODEL, WEIGHTS};
use crate::quant::{ComputeDtype, Scheme, Source};

/// What happens to a part, for whoever shows progress.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum PartState {
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
        /// Bytes of its files.
        bytes: u64,
        /// How long stamping or converting took.
        seconds: f64,
    },
}

/// Threads that wait for the disk.
const COMMITTERS: usize = 2;

/// Told about progress, from several threads.
pub trait Progress: Sync {
    /// A part's state changed.
    fn part(&self, part: Part, state: PartState);
    /// A template is being made by coremltools.
    fn template_started(&self);
    /// It is ready after this many seconds.
    fn template_ready(&self, seconds: f64);
}

/// A file of a baked part.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BakedFile {
    /// Path inside the package; the name in the output where there is none.
    pub path: String,
    /// Its bytes.
    pub blob: BlobRef,
}

/// A baked part: what the cache keeps and the manifest tells.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct BakedPart {
    /// Hash of the files: of the package.
    pub package: Digest,
    /// Its files.
    pub files: Vec<BakedFile>,
    /// What happened to every tensor, in file order; empty for the engine `coremltools`.
    pub tensors: Vec<TensorReport>,
}

impl BakedPart {
    /// A baked part of these files.
    pub fn new(mut files: Vec<BakedFile>, tensors: Vec<TensorReport>) -> Self {
        files.sort_by(|a, b| a.path.cmp(&b.path));
        let package = mlpackage::digest_of(files.iter().map(|file| (&*file.path, &file.blob)));
        Self { package, files, tensors }
    }

    /// Bytes of all files.
    pub fn size(&self) -> u64 {
        self.files.iter().map(|file| file.blob.size).sum()
    }
}

/// What became of one part.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Which.
    pub part: Part,
    /// Its key.
    pub key: ActionKey,
    /// Digests of its tensors, in the plan's order.
    pub digests: Vec<Digest>,
    /// Its files.
    pub baked: BakedPart,
    /// Whether it was in the cache.
    pub cached: bool,
    /// Seconds of stamping or converting; 0 where it was cached.
    pub seconds: f64,
}

/// How to run.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Threads that digest and stamp; without a number [`default_jobs`].
    pub jobs: Option<NonZeroUsize>,
    /// Bake what is cached, too.
    pub force: bool,
    /// Fail rather than bake.
    pub frozen: bool,
}

/// Threads to use where the user does not say.
pub fn default_jobs() -> NonZeroUsize {
    std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN)
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
    /// Bakes the plan's parts that `wanted` accepts; returns them in the plan's order.
    ///
    /// # Errors
    /// The first error of any part; parts that were finished by then are in the cache.
    pub fn run(
        &self,
        options: Options,
        progress: &dyn Progress,
        wanted: &(dyn Fn(Part) -> bool + Sync),
    ) -> Result<Vec<Outcome>> {
        let wanted: Vec<&PlannedPart> = self.plan.parts.iter().filter(|planned| wanted(planned.part)).collect();
        let memos = digest_memos(self.cache, self.checkpoint)?;
        let mut outcomes = BTreeMap::new();
        if !options.force {
            for outcome in self.look_up_known(&wanted, &memos)? {
                progress.part(outcome.part, PartState::Cached);
                outcomes.insert(outcome.part, outcome);
            }
        }
        let mut missing: Vec<&PlannedPart> =
            wanted.iter().filter(|planned| !outcomes.contains_key(&planned.part)).copied().collect();
        // The largest first: its template takes longest. The embedding last: the head may have digested its table.
        missing.sort_by_key(|planned| planned.part != Part::Head);
        if !missing.is_empty() {
            self.run_threads(&missing, &memos, options, progress, &mut outcomes)?;
        }
        self.checkpoint.unchanged()?;
        wanted
            .iter()
            .map(|planned| outcomes.remove(&planned.part).context("a part was neither baked nor refused"))
            .collect()
    }

    /// The parts that are cached, of those whose tensors' digests are known. Where everything hits this is most of the
    /// work: two threads share it, more would cost more than they save.
    fn look_up_known(&self, parts: &[&PlannedPart], memos: &[DigestMemo<'_>]) -> Result<Vec<Outcome>> {
        let look_up = |parts: &[&PlannedPart]| -> Result<Vec<Outcome>> {
            let found = parts.iter().filter_map(|planned| {
                let digests = known_digests(memos, &planned.tensors)?;
                let key = self.plan.part_key(planned, &digests);
                self.look_up(planned, key, &digests).transpose()
            });
            found.collect()
        };
        let (front, back) = parts.split_at(parts.len() / 2);
        std::thread::scope(|scope| {
            let back = scope.spawn(|| look_up(back));
            let mut found = look_up(front)?;
            found.extend(back.join().unwrap_or_else(|_| Err(anyhow::anyhow!("a look-up panicked")))?);
            Ok(found)
        })
    }

    fn look_up(&self, planned: &PlannedPart, key: ActionKey, digests: &[Digest]) -> Result<Option<Outcome>> {
        let Lookup::Hit { result } = self.cache.lookup::<BakedPart>(&key)? else { return Ok(None) };
        let digests = digests.to_vec();
        Ok(Some(Outcome { part: planned.part, key, digests, baked: result, cached: true, seconds: 0.0 }))
    }

    fn run_threads(
        &self,
        parts: &[&PlannedPart],
        memos: &[DigestMemo<'_>],
        options: Options,
        progress: &dyn Progress,
        outcomes: &mut BTreeMap<Part, Outcome>,
    ) -> Result<()> {
        self.checkpoint.check()?;
        let workers = options.jobs.unwrap_or_else(default_jobs).get().min(parts.len().max(1));
        let run = Run {
            bake: self,
            options,
            progress,
            memos,
            next: AtomicUsize::new(0),
            parts,
            failed: AtomicBool::new(false),
            board: Mutex::new(Board {
                templates: BTreeMap::new(),
                deferred: VecDeque::new(),
                stamped: VecDeque::new(),
                undigested: parts.len(),
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
    parts: &'a [&'a PlannedPart],
    next: AtomicUsize,
    failed: AtomicBool,
    board: Mutex<Board<'a>>,
    changed: Condvar,
    outcomes: Mutex<BTreeMap<Part, Outcome>>,
}

/// What the threads tell each other.
struct Board<'a> {
    templates: BTreeMap<String, Slot>,
    deferred: VecDeque<Job>,
    stamped: VecDeque<Stamped<'a>>,
    undigested: usize,
    stampers: usize,
}

/// A part whose bytes are written, but not yet durable or recorded.
struct Stamped<'a> {
    job: Job,
    bytes: BlobWriter<'a>,
    /// None for the embedding, which is no package.
    template: Option<Arc<Template>>,
    tensors: Vec<TensorReport>,
    start: Instant,
}

/// A template on its way.
enum Slot {
    Wanted { document: Box<Value>, key: ActionKey, position: usize },
    InWork,
    Ready(Arc<Template>),
}

/// A part that must be baked.
struct Job {
    position: usize,
    digests: Vec<Digest>,
    document: Value,
    key: ActionKey,
    road: Road,
}

/// What it takes to bake a part.
enum Road {
    /// Stamping, once the template with this key is ready.
    Template(String),
    /// coremltools, on the thread that Python lives on.
    Coremltools,
    /// Writing values down.
    Plain,
}

impl Road {
    /// Whether a worker can go it, with these templates.
    fn is_open(&self, templates: &BTreeMap<String, Slot>) -> bool {
        match self {
            Self::Template(key) => matches!(templates.get(key), Some(Slot::Ready(_))),
            Self::Coremltools => false,
            Self::Plain => true,
        }
    }
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
            if let Some((job, template)) = self.take_ready() {
                self.stamp(job, template, &mut workspace)?;
                continue;
            }
            let position = self.next.fetch_add(1, Ordering::SeqCst);
            if position < self.parts.len() {
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

    /// A deferred part that a worker can bake now, with its template if it has one.
    fn take_ready(&self) -> Option<(Job, Option<Arc<Template>>)> {
        let mut board = lock(&self.board);
        let Board { templates, deferred, .. } = &mut *board;
        let found = deferred.iter().position(|job| job.road.is_open(templates))?;
        let job = deferred.remove(found)?;
        let template = match &job.road {
            Road::Template(key) => match templates.get(key) {
                Some(Slot::Ready(template)) => Some(Arc::clone(template)),
                _ => None,
            },
            Road::Coremltools | Road::Plain => None,
        };
        Some((job, template))
    }

    /// Digests a part's tensors and looks the part up; puts it on the board where it must be baked.
    fn look_up(&self, position: usize) -> Result<()> {
        let planned = self.parts[position];
        let plan = self.bake.plan;
        self.progress.part(planned.part, PartState::Hashing);
        let digests = tensor_digests(self.bake.checkpoint, self.memos, &planned.tensors);
        let key = plan.part_key(planned, &digests);
        if !self.options.force
            && let Some(outcome) = self.bake.look_up(planned, key, &digests)?
        {
            self.progress.part(planned.part, PartState::Cached);
            self.finish(outcome);
            return Ok(());
        }
        if self.options.frozen {
            return Err(Fault::new(Status::Incomplete, format!("{} is not in the cache", planned.part))
                .with_hint("bake it without `--frozen`; `anebake explain` tells what changed")
                .into());
        }
        let document = plan.part_document(planned, &digests);
        self.progress.part(planned.part, PartState::Waiting);
        let mut board = lock(&self.board);
        let road = match plan.engine {
            _ if !planned.part.is_package() => Road::Plain,
            Engine::Coremltools => Road::Coremltools,
            Engine::Native => {
                let (document, key) = plan.template_action(planned);
                let name = key.to_string();
                let wanted = Slot::Wanted { document: Box::new(document), key, position };
                board.templates.entry(name.clone()).or_insert(wanted);
                Road::Template(name)
            }
        };
        board.deferred.push_back(Job { position, digests, document, key, road });
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
            let position = |slot: &Slot| match slot {
                Slot::Wanted { position, .. } => Some(*position),
                Slot::InWork | Slot::Ready(_) => None,
            };
            // Blocks first: while the head's template is made they are stamped.
            let wanted = board.templates.iter().filter_map(|(name, slot)| Some((position(slot)?, name)));
            let first = wanted.min_by_key(|(position, _)| self.parts[*position].part);
            let Some(name) = first.map(|(_, name)| name.clone()) else {
                if board.undigested == 0 || self.stopped() {
                    return Ok(());
                }
                drop(self.changed.wait_timeout(board, Duration::from_millis(50)));
                continue;
            };
            let Some(Slot::Wanted { document, key, position }) = board.templates.insert(name.clone(), Slot::InWork)
            else {
                continue;
            };
            drop(board);
            let template = self.template(&document, &key, self.parts[position])?;
            lock(&self.board).templates.insert(name, Slot::Ready(Arc::new(template)));
            self.changed.notify_all();
        }
    }

    fn template(&self, document: &Value, key: &ActionKey, planned: &PlannedPart) -> Result<Template> {
        let Bake { plan, cache, environment, .. } = self.bake;
        if let Some(template) = Template::cached(cache, key)? {
            return Ok(template);
        }
        let start = Instant::now();
        self.progress.template_started();
        let python = Python::start(environment)?;
        let template =
            Template::make(cache, python, key, document, &planned.request.value, &planned.tensors, plan.compute)?;
        self.progress.template_ready(start.elapsed().as_secs_f64());
        Ok(template)
    }

    fn stamp(&self, job: Job, template: Option<Arc<Template>>, workspace: &mut Workspace) -> Result<()> {
        let planned = self.parts[job.position];
        let Bake { plan, checkpoint, cache, .. } = self.bake;
        let start = Instant::now();
        self.progress.part(planned.part, PartState::Baking);
        checkpoint.unchanged()?;
        let source = PartWeights { checkpoint, planned };
        let size = match &template {
            Some(template) => template.layout.size,
            None => planned.tensors.iter().map(PlannedTensor::elements).sum::<u64>() * FLAT.size() as u64,
        };
        let mut bytes = cache.blob_writer()?.with_expected_size(size);
        let mut sink = |part: &[u8]| bytes.append(part);
        let tensors = match &template {
            Some(template) => stamp(&template.layout, &template.statics, plan.compute, &source, workspace, &mut sink),
            None => {
                let roles = planned.tensors.iter().map(|planned| &*planned.tensor.role);
                flat(roles, FLAT, &source, workspace, &mut sink)
            }
        };
        let tensors = tensors.with_context(|| format!("cannot bake {}", planned.part))?;
        lock(&self.board).stamped.push_back(Stamped { job, bytes, template, tensors, start });
        self.changed.notify_all();
        Ok(())
    }

    /// A committer: makes stamped parts durable and records them, until no worker is left.
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
            let Stamped { job, bytes, template, tensors, start } = stamped;
            let file = |path: &str, blob| BakedFile { path: path.to_owned(), blob };
            let blob = bytes.commit()?;
            let files = match template {
                Some(template) => {
                    vec![file(MODEL, template.model), file(MANIFEST, template.manifest), file(WEIGHTS, blob)]
                }
                None => vec![file(&self.parts[job.position].part.path(), blob)],
            };
            self.record(job, BakedPart::new(files, tensors), start)?;
        }
    }

    fn bake_by_coremltools(&self) -> Result<()> {
        loop {
            let mut board = lock(&self.board);
            let found = board.deferred.iter().position(|job| matches!(job.road, Road::Coremltools));
            let Some(job) = found.and_then(|found| board.deferred.remove(found)) else {
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
            let planned = self.parts[job.position];
            let Bake { checkpoint, cache, environment, .. } = self.bake;
            let start = Instant::now();
            self.progress.part(planned.part, PartState::Baking);
            checkpoint.unchanged()?;
            let python = Python::start(environment)?;
            let source = PartWeights { checkpoint, planned };
            let files = witness::convert(cache, python, planned, &source)
                .with_context(|| format!("coremltools cannot convert {}", planned.part))?;
            self.record(job, BakedPart::new(files, Vec::new()), start)?;
        }
    }

    fn record(&self, job: Job, baked: BakedPart, start: Instant) -> Result<()> {
        let planned = self.parts[job.position];
        let blobs: Vec<BlobRef> = baked.files.iter().map(|file| file.blob).collect();
        self.bake.checkpoint.unchanged()?;
        let subject = self.bake.plan.subject(planned);
        self.bake.cache.record(&job.key, &job.document, &baked, &blobs, Some(&subject))?;
        let seconds = start.elapsed().as_secs_f64();
        self.progress.part(planned.part, PartState::Baked { bytes: baked.size(), seconds });
        let Job { digests, key, .. } = job;
        self.finish(Outcome { part: planned.part, key, digests, baked, cached: false, seconds });
        Ok(())
    }

    fn finish(&self, outcome: Outcome) {
        lock(&self.outcomes).insert(outcome.part, outcome);
    }
}

/// Dtype of flat files.
const FLAT: ComputeDtype = ComputeDtype::F16;

/// A part's tensors in the checkpoint.
pub struct PartWeights<'a> {
    /// The checkpoint.
    pub checkpoint: &'a Checkpoint,
    /// The part.
    pub planned: &'a PlannedPart,
}

impl PartWeights<'_> {
    fn find(&self, role: &str) -> Result<&PlannedTensor> {
        let found = self.planned.tensors.iter().find(|planned| planned.tensor.role == role);
        found.with_context(|| format!("{} has no tensor `{role}`", self.planned.part))
    }
}

impl WeightSource for PartWeights<'_> {
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

    fn release(&self, role: &str, values: Range<u64>) {
        let Ok(planned) = self.find(role) else { return };
        let (all, length) = (planned.elements().max(1), planned.source.length);
        let byte = |value: u64| (u128::from(value.min(all)) * u128::from(length) / u128::from(all)) as u64;
        self.checkpoint.release(&planned.source, byte(values.start)..byte(values.end));
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
